"""What broken code of the user's raises."""

from typing import Final

#: Caught around validators, functions of ``by=`` and comparisons; an interruption, such as a time limit, is none of them.
BUGS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError, ValueError)
