"""``manage.py`` with warnings as errors, and with the driver that a test asks for."""

import os
import runpy
import warnings

warnings.simplefilter("error")
if os.environ["BAKERY_DRIVER"] == "pymysql":  # before Django looks for mysqlclient
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)
    pymysql.install_as_MySQLdb()
runpy.run_path("manage.py", run_name="__main__")
