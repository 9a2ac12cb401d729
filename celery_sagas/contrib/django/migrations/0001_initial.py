"""The tables, in the layout of this release."""

from django.db import migrations

from celery_sagas.contrib.django.schema import create_tables, drop_tables


class Migration(migrations.Migration):
    """Creates the tables that are missing."""

    initial = True
    dependencies = ()
    operations = (migrations.RunPython(create_tables, drop_tables, atomic=False),)  # the migration is, if the database allows it
