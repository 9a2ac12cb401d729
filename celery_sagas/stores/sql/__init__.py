"""The backend in an SQL database: PostgreSQL, MariaDB, MySQL or SQLite."""
