"""The unit of work: a message's effect, committed once, whatever else runs at the same time."""

import logging

from celery_sagas.core.steps import StepDefinition
from celery_sagas.engine.conflicts import Conflicts
from celery_sagas.engine.outcomes import Outcome
from celery_sagas.engine.run import Delivery, Run, Services
from celery_sagas.errors import AlreadyHandled, RevisionConflict

logger = logging.getLogger("celery_sagas")


def handle(services: Services, step: StepDefinition, delivery: Delivery) -> Outcome:
    """Handle a message; its effect is committed when this returns.

    Raises:
        SagaError: Nothing was written; its ``retry`` says when the message may run again.
        Exception: What the handler raised; nothing was written.
    """
    conflicts = Conflicts(services.conflict_retries)
    while True:
        try:
            return Run(services, step, delivery, conflicts).execute()
        except RevisionConflict as conflict:
            logger.debug("%s: %s", step.name, conflict)
            conflicts.wait(conflict)
        except AlreadyHandled as handled:
            logger.debug("%s: %s", step.name, handled)  # the next find sees it
