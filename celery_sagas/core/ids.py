"""Message ids that are derived from the message that causes them: handled again, it causes the same ones."""

from uuid import NAMESPACE_OID, UUID, uuid5


def derived_id(message_id: str, name: str) -> str:
    """Return the id of what a message causes under a name.

    Args:
        message_id: Of the causing message: a UUID, or any other text.
        name: Tells apart what one message causes.
    """
    try:
        namespace = UUID(message_id)
    except ValueError:
        namespace = uuid5(NAMESPACE_OID, message_id)
    return str(uuid5(namespace, name))
