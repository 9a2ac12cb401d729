"""The web view: what operators see of the instances, and what they do to them, in a browser. It needs the extra ``web``."""

from celery_sagas.errors import needs_extra

with needs_extra("web", "the web view"):
    from celery_sagas.web.access import Access, Level
    from celery_sagas.web.asgi import asgi

__all__ = ["Access", "Level", "asgi"]
