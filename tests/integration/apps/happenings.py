"""An event, in a module that imports no step."""

from celery_sagas import Message


class Placed(Message):
    order_id: str
