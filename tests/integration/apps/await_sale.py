"""A process that waits for what a worker does: ``await_sale.py <order> <seconds>``."""

import sys

from happenings import Placed
from selling import Sale, close, placed

if __name__ == "__main__":
    order_id, timeout = sys.argv[1], float(sys.argv[2])
    placed.delay(Placed(order_id=order_id))
    print("it waits", flush=True)
    print("told", Sale.wait(order_id, until=lambda sale: sale.told == 1, timeout=timeout).told)
    close.delay(order_id)
    print("ended as", Sale.wait(order_id, until="completed", timeout=timeout).kind)
