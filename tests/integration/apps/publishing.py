"""A process that has imported no step, and has no setting of a saga: ``publishing.py <order>`` publishes one event."""

import sys

from deployed import make_app
from happenings import Placed

from celery_sagas import publish

app = make_app(has_sagas=False)

if __name__ == "__main__":
    print(publish(Placed(order_id=sys.argv[1])))
