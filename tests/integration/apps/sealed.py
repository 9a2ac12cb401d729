"""Patients, of whom nothing may be read in a store."""

from typing import Annotated

from deployed import make_app
from pydantic import Field

from celery_sagas import Saga

app = make_app()


class Patient(Saga, correlate_by="number", history=("messages", "values")):
    number: str
    diagnosis: Annotated[str, Field(repr=False)] = ""
    note: str = ""


@Patient.starts
def admit(patient: Patient, number: str, diagnosis: str) -> None:
    patient.diagnosis = diagnosis
    patient.schedule(examine.s(number=number, note=f"again: {diagnosis}"), after=3_600)


@Patient.handles
def examine(patient: Patient, number: str, note: str) -> None:
    patient.note = note
