"""What a step returns, encoded for whoever asks it: as JSON text, by the annotation of its function."""

from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError as DoesNotValidate
from pydantic_core import SchemaSerializer, SchemaValidator

from celery_sagas.core.arguments import MASK, codec_of, holds_secret
from celery_sagas.core.codec import validation_problems
from celery_sagas.errors import BUGS, AnswerNotKept, problems_text

#: The most bytes of a result that the journal keeps.
MOST_BYTES: Final = 65_536
#: The result's name in the JSON object that holds it.
_NAME: Final = "result"


@dataclass(frozen=True, slots=True)
class Results:
    """The results of one step."""

    step: str
    _serializer: SchemaSerializer
    _validator: SchemaValidator

    def encode(self, result: Any) -> str:
        """Return a result as JSON text.

        Raises:
            AnswerNotKept: It cannot be encoded, is too large, or holds a secret.
        """
        try:
            text = self._serializer.to_json({_NAME: result}, by_alias=True, round_trip=True, warnings=False).decode()
        except BUGS as exc:
            raise AnswerNotKept(self.step, f"a {type(result).__name__} cannot be encoded as JSON") from exc
        if (size := len(text.encode())) > MOST_BYTES:
            raise AnswerNotKept(self.step, f"it has {size:,} bytes, and {MOST_BYTES:,} are kept")
        if MASK in text and holds_secret(result):
            raise AnswerNotKept(self.step, "it holds a secret, which would be kept as asterisks")
        return text

    def read(self, text: str) -> Any:
        """Return the result that JSON text stands for.

        Raises:
            AnswerNotKept: It does not fit the annotation.
        """
        try:
            return self._validator.validate_json(text)[_NAME]
        except DoesNotValidate as exc:
            problems = [(path.removeprefix(_NAME).lstrip("."), problem) for path, problem in validation_problems(exc)]
            raise AnswerNotKept(self.step, f"it is not what the annotation says: {problems_text(problems)}") from exc
        except BUGS as exc:
            raise AnswerNotKept(self.step, f"its validation raised {type(exc).__name__}") from exc


def results_of(step: str, annotation: Any) -> Results:
    """Return what encodes and reads the results of a step, given the annotation of what its function returns.

    Raises:
        DefinitionError: There is no JSON for it.
    """
    return Results(step, *codec_of(step, "what it returns", _NAME, annotation))
