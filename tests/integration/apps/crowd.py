"""A hundred sagas that get one event."""

from deployed import make_app
from happenings import Placed

from celery_sagas import Saga, publish

app = make_app()
FOLLOWERS = 100


class Announcer(Saga, correlate_by="order_id"):
    order_id: str


@Announcer.starts
def announce(announcer: Announcer, order_id: str) -> None:
    publish(Placed(order_id=order_id))


def follow(number: int) -> None:
    """Define a saga that gets the event."""

    class Follower(Saga, correlate_by="order_id", name=f"follower{number}"):
        __qualname__ = f"Follower{number}"  # else each would replace the one before it
        order_id: str
        told: int = 0

    @Follower.starts
    def placed(follower: Follower, event: Placed) -> None:
        follower.told += 1


for each in range(FOLLOWERS):
    follow(each)
