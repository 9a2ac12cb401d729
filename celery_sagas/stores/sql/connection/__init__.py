"""The connections to a database, and what runs over them."""
