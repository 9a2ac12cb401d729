"""What the journal keeps of a message whose result somebody awaits outside of all tasks."""

from collections.abc import Mapping
from typing import Any, Final

from celery_sagas.core.step import StepDefinition
from celery_sagas.errors import AnswerNotKept, DefinitionError

#: Parts of an entry's details: what stands for the arguments of the message; what its step has returned, as JSON text, in which
#: nothing is that a database could refuse; or why that is not kept; and the status for which the message was ignored.
QUESTION: Final = "question"
RESULT: Final = "result"
NOT_KEPT: Final = "result_not_kept"
STATUS: Final = "status"


def kept_result(step: StepDefinition, result: Any) -> Mapping[str, str]:
    """Return what the journal keeps of what a step has returned; or why it does not: that undoes no effect of the step."""
    try:
        return {RESULT: step.results.encode(result)}
    except (AnswerNotKept, DefinitionError) as exc:
        return {NOT_KEPT: exc.problem}
