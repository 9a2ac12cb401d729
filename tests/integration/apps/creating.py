"""Creates the tables of an app: ``creating.py <app>``, the library's and those of ``Base``."""

import importlib
import sys

from sqlalchemy import create_engine

from celery_sagas.worker.runtime import runtime_of

if __name__ == "__main__":
    module = importlib.import_module(sys.argv[1])
    runtime_of(module.app).prepare(processes=1)
    module.Base.metadata.create_all(create_engine(module.app.conf.saga_backend))
