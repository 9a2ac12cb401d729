"""A proxy for the task of a definition in the current app, as ``shared_task`` returns one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from celery.local import Proxy

from celery_sagas.worker.celery_internals import current_app, present_app, registered

if TYPE_CHECKING:

    class TaskProxy:
        """Typing only: a subclass declares to type checkers the interface that it proxies."""

else:

    class TaskProxy(Proxy):
        """Stands for a task, and has its definition without any app."""

        __slots__ = ("_definition",)
        #: The class that it appears to have while the app has no task.
        _stand_in: type

        def __init__(self, definition: Any) -> None:
            super().__init__(lambda: current_app().tasks[definition.name], __doc__=definition.function.__doc__)
            object.__setattr__(self, "_definition", definition)

        def __class_getitem__(cls, parameters: object) -> type["TaskProxy"]:
            return cls

        @property
        def __class__(self) -> type:
            """The task's class; a stand-in while the app has no task: pydantic checks the class of every object in a module.

            The app has none before it is finalised, nor if it was closed before the task was defined.
            """
            app = present_app()
            task = None if app is None else registered(app, self.name)
            return type(self)._stand_in if task is None else task.__class__

        @property
        def name(self) -> str:
            """The task's name."""
            return object.__getattribute__(self, "_definition").name

        @property
        def handler(self) -> Callable[..., Any]:
            """The plain function."""
            return object.__getattribute__(self, "_definition").function
