"""The permissions for the web view, which need a model; there is no table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Has Django create them."""

    dependencies = (("celery_sagas", "0003_tried"),)
    operations = (
        migrations.CreateModel(
            name="Web",
            fields=[("id", models.AutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID"))],
            options={
                "managed": False,
                "base_manager_name": "objects",
                "default_permissions": (),
                "permissions": (
                    ("look", "Can see which sagas there are, and how they fare"),
                    ("read", "Can see the states and messages of sagas"),
                    ("act", "Can act on sagas and dead letters"),
                ),
                "verbose_name": "web view",
                "verbose_name_plural": "web view",
            },
        ),
    )
