"""The web view: what operators see of the instances, and what they do to them, in a browser. It needs the extra ``web``."""

from celery_sagas.errors import ConfigurationError

try:
    from celery_sagas.web.access import Access, Level
    from celery_sagas.web.asgi import asgi
except ModuleNotFoundError as exc:
    raise ConfigurationError(f"the web view cannot be imported ({exc})", 'Run pip install "celery-sagas[web]"') from exc

__all__ = ["Access", "Level", "asgi"]
