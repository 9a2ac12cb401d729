"""Start jobs from a process that knows their saga, and print the messages' ids: ``start_job.py <name> <linked> <chained>``.

The first is started at once, the others after a task that the worker knows.
"""

import sys

from celery import signature
from failing import try_thrice

if __name__ == "__main__":
    name, linked, chained = sys.argv[1:]
    print(try_thrice.delay(name=name).id)
    link = try_thrice.s().set(task_id=f"linked-{linked}")
    signature("forgetful.hand_on", (linked,)).apply_async(link=link)
    print(link.id)
    print((signature("forgetful.hand_on", (chained,)) | try_thrice.s()).apply_async().id)
