"""``DeadLetters``."""

import pytest

from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import DeadLetter
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import dead_letter


class DeadLettersContract(StoreFixtures):
    """The requirements on every ``DeadLetters``."""

    def test_dead_letter_is_kept_with_the_stores_time(
        self, backend: Backend, open_backend: OpenBackend, prefix: str, clock: Clock
    ) -> None:
        kept = dead_letter()
        backend.dead.add(kept)
        assert open_backend(prefix).dead.get(kept.id) == kept._replace(at=clock.now)

    def test_dead_letter_with_a_kept_id_changes_nothing(self, backend: Backend, clock: Clock) -> None:
        """The reply was lost, the call is repeated."""
        kept = dead_letter()
        backend.dead.add(kept)
        clock.advance(1)
        backend.dead.add(kept._replace(text="another text"))
        assert backend.dead.list(9) == [kept._replace(at=clock.now - 1)]

    def test_one_message_may_have_several_dead_letters(self, backend: Backend) -> None:
        kept = dead_letter()
        backend.dead.add(kept)
        backend.dead.add(kept._replace(id=dead_letter().id))
        assert len(backend.dead.list(9)) == 2

    def test_no_dead_letters_are_an_empty_list(self, backend: Backend) -> None:
        assert backend.dead.list(9) == []

    def test_newest_dead_letter_comes_first(self, backend: Backend, clock: Clock) -> None:
        dead_letters = _add(backend, clock, number=4, apart_ms=1)
        assert backend.dead.list(9) == dead_letters[::-1]

    def test_list_is_cut_at_its_old_end(self, backend: Backend, clock: Clock) -> None:
        dead_letters = _add(backend, clock, number=4, apart_ms=1)
        assert backend.dead.list(2) == dead_letters[:1:-1]

    @pytest.mark.parametrize("apart_ms", [1, 0])
    def test_pages_follow_each_other(self, backend: Backend, clock: Clock, apart_ms: int) -> None:
        """Every dead letter is returned, also of those added at the same time."""
        dead_letters = _add(backend, clock, number=7, apart_ms=apart_ms)
        pages = [backend.dead.list(3)]
        for _ in range(3):
            pages.append(backend.dead.list(3, before=pages[-1][-1].id))
        assert [len(page) for page in pages] == [3, 3, 1, 0]
        listed = [dead_letter for page in pages for dead_letter in page]
        assert listed == backend.dead.list(9)
        assert sorted(listed, key=repr) == sorted(dead_letters, key=repr)

    def test_unknown_dead_letter_is_none(self, backend: Backend) -> None:
        assert backend.dead.get("unknown") is None

    def test_dead_letter_is_removed_once(self, backend: Backend) -> None:
        gone, kept = dead_letter(), dead_letter()
        backend.dead.add(gone)
        backend.dead.add(kept)
        assert backend.dead.remove(gone.id)
        assert not backend.dead.remove(gone.id)
        assert backend.dead.get(gone.id) is None
        assert [left.id for left in backend.dead.list(9)] == [kept.id]

    def test_dead_letters_are_counted(self, backend: Backend) -> None:
        assert backend.dead.count() == 0
        dead_letters = [dead_letter() for _ in range(3)]
        for kept in [*dead_letters, dead_letters[0]]:
            backend.dead.add(kept)
        assert backend.dead.count() == 3
        backend.dead.remove(dead_letters[1].id)
        assert backend.dead.count() == 2

    def test_long_texts_are_kept_whole(self, backend: Backend) -> None:
        kept = dead_letter(text="😀" * 50_000)
        backend.dead.add(kept)
        back = backend.dead.get(kept.id)
        assert back is not None
        assert (back.text, back.traceback) == (kept.text, kept.traceback)


def _add(backend: Backend, clock: Clock, number: int, apart_ms: int) -> list[DeadLetter]:
    dead_letters = []
    for _ in range(number):
        clock.advance(apart_ms)
        kept = dead_letter()
        backend.dead.add(kept)
        dead_letters.append(kept._replace(at=clock.now))
    return dead_letters
