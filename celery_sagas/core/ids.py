"""Ids: new ones, and those that are derived from the message that causes something."""

from uuid import NAMESPACE_OID, UUID, uuid4, uuid5


def derived_id(message_id: str, name: str) -> str:
    """Return the id of what a message causes under a name: handled again, it causes the same.

    Args:
        message_id: Of the causing message: a UUID, or any other text.
        name: Tells apart what one message causes.
    """
    return str(uuid5(_namespace(message_id), name))


def _namespace(message_id: str) -> UUID:
    """Return a UUID for a message id: another for another text, also where both are forms of one UUID."""
    try:
        namespace = UUID(message_id)
    except ValueError:
        namespace = None
    return namespace if namespace is not None and str(namespace) == message_id else uuid5(NAMESPACE_OID, message_id)


def new_id() -> str:
    """Return a new id."""
    return str(uuid4())
