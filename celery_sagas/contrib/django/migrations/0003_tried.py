"""When a row of the outbox was tried first, the audit, and the switches: a column and tables, which the release before lacks."""

from django.db import migrations

from celery_sagas.contrib.django.schema import migrate_tables


class Migration(migrations.Migration):
    """Adds what is missing, as the migration before it; nothing in tables that this release has created.

    The release before runs on the result, too: nothing need be undone for it.
    """

    atomic = False  # PostgreSQL makes an index beside commits outside of transactions alone
    dependencies = (("celery_sagas", "0002_pages"),)
    operations = (migrations.RunPython(migrate_tables, migrations.RunPython.noop),)
