"""A backend whose texts with values of users are encoded, as the setting ``saga_codec`` says."""

from celery_sagas.stores.encoded.codec import Codec

__all__ = ["Codec"]
