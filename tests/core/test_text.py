import pytest

from celery_sagas.core.names import storable


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("as it is: äöü, 日本, 🙂", "as it is: äöü, 日本, 🙂"),
        ("a\0b", "a\\0b"),
        ("a\ud800b", "a\\ud800b"),
        ("x" * 101, "x" * 100),
    ],
)
def test_text_that_every_store_takes(text, kept):
    assert storable(text, 100) == kept
