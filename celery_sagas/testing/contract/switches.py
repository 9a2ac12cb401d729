"""``Switches``, and the entries of the audit that are written with them."""

import pytest

from celery_sagas.errors import StoreError
from celery_sagas.stores.ports import Backend
from celery_sagas.stores.records import AuditEntry
from celery_sagas.stores.switches import MOST, Switch
from celery_sagas.testing.clock import Clock
from celery_sagas.testing.contract.fixtures import OpenBackend, StoreFixtures
from celery_sagas.testing.samples import HOUR, NAMES, audited, entry, update
from celery_sagas.testing.samples import start as start_instance
from celery_sagas.testing.view import nothing_written

STEP, OTHER_STEP = "order.charge", "order.ship"


def act(action: str = "hold", reason: str = "the bank is closed", *, actor: str = "ann@shop", id: str = "") -> AuditEntry:
    """Make the entry of a change."""
    return audited(entry(key=""), action=action, reason=reason, id=id)._replace(actor=actor)


@pytest.mark.usefixtures("switches")
class SwitchesContract(StoreFixtures):
    """The requirements on every ``Switches``."""

    @pytest.fixture
    def full(self, backend: Backend) -> None:
        """As many switches as there may be."""
        for number in range(MOST):
            assert backend.switches.hold(f"step {number}", act())

    def test_nothing_is_held_at_first(self, backend: Backend) -> None:
        assert backend.switches.held() == []

    def test_what_is_held_has_actor_reason_and_time(self, backend: Backend, clock: Clock) -> None:
        assert backend.switches.hold(STEP, act())
        assert backend.switches.held() == [Switch(STEP, "ann@shop", "the bank is closed", clock.now)]

    def test_any_text_is_kept(self, backend: Backend) -> None:
        reason = "it's 100 %\n\t😀 \\ \" { ; -- 7 7\n" * 50
        backend.switches.hold(STEP, act(reason=reason, actor="Ännchen 7\nfrom 😀"))
        (switch,) = backend.switches.held()
        assert (switch.actor, switch.reason) == ("Ännchen 7\nfrom 😀", reason)

    def test_switches_are_sorted_by_name(self, backend: Backend) -> None:
        names = ["order", "b", "Order", "a.b", "order.ship", "order_"]
        for name in names:
            backend.switches.hold(name, act())
        assert [each.name for each in backend.switches.held()] == sorted(names)

    def test_held_is_an_entry_of_the_audit(self, backend: Backend, clock: Clock) -> None:
        made = act()
        backend.switches.hold(STEP, made)
        assert backend.audit.recent(9).entries == (made._replace(at=clock.now),)
        assert backend.audit.recent(9, "", NAMES).entries == (made._replace(at=clock.now),)

    def test_released_is_an_entry_of_the_audit(self, backend: Backend, clock: Clock) -> None:
        backend.switches.hold(STEP, act())
        clock.advance(HOUR)
        made = act("release", "it is open")
        assert backend.switches.release(STEP, made)
        assert backend.audit.recent(9).entries[0] == made._replace(at=clock.now)

    def test_one_that_is_held_stays_as_it_is(self, backend: Backend, clock: Clock) -> None:
        backend.switches.hold(STEP, act())
        before = backend.switches.held()
        clock.advance(HOUR)
        with nothing_written(backend):
            assert not backend.switches.hold(STEP, act(reason="another", actor="bob"))
        assert backend.switches.held() == before

    def test_released_one_is_not_held(self, backend: Backend) -> None:
        backend.switches.hold(STEP, act())
        backend.switches.hold(OTHER_STEP, act())
        assert backend.switches.release(STEP, act("release"))
        assert [each.name for each in backend.switches.held()] == [OTHER_STEP]

    def test_one_that_is_not_held_is_not_released(self, backend: Backend) -> None:
        backend.switches.hold(OTHER_STEP, act())
        with nothing_written(backend):
            assert not backend.switches.release(STEP, act("release"))
        assert [each.name for each in backend.switches.held()] == [OTHER_STEP]

    def test_it_can_be_held_again(self, backend: Backend) -> None:
        backend.switches.hold(STEP, act())
        backend.switches.release(STEP, act("release"))
        assert backend.switches.hold(STEP, act(reason="again"))
        assert [each.reason for each in backend.switches.held()] == ["again"]

    def test_repeat_of_a_hold_answers_as_the_first_call(self, backend: Backend, clock: Clock) -> None:
        made = act()
        backend.switches.hold(STEP, made)
        before = backend.switches.held()
        clock.advance(HOUR)
        with nothing_written(backend):
            assert backend.switches.hold(STEP, made)
        assert backend.switches.held() == before

    def test_late_repeat_of_a_hold_holds_nothing(self, backend: Backend) -> None:
        """Another operator has released it meanwhile."""
        made = act()
        backend.switches.hold(STEP, made)
        backend.switches.release(STEP, act("release"))
        with nothing_written(backend):
            assert backend.switches.hold(STEP, made)
        assert backend.switches.held() == []

    def test_repeat_of_a_release_answers_as_the_first_call(self, backend: Backend) -> None:
        backend.switches.hold(STEP, act())
        made = act("release")
        backend.switches.release(STEP, made)
        backend.switches.hold(STEP, act(reason="again"))
        with nothing_written(backend):
            assert backend.switches.release(STEP, made)
        assert [each.reason for each in backend.switches.held()] == ["again"]

    def test_names_are_compared_byte_by_byte(self, backend: Backend) -> None:
        for name in ("order", "Order", "order "):
            assert backend.switches.hold(name, act())
        assert backend.switches.release("Order", act("release"))
        assert [each.name for each in backend.switches.held()] == ["order", "order "]

    def test_prefix_partitions_them(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        other = open_backend(f"{prefix}-other")
        other.prepare(create_schema=True, processes=1)
        backend.switches.hold(STEP, act())
        assert other.switches.held() == []
        assert not other.switches.release(STEP, act("release"))
        assert other.switches.hold(STEP, act(reason="another"))
        assert [each.reason for each in backend.switches.held()] == ["the bank is closed"]

    def test_other_processes_see_them(self, backend: Backend, open_backend: OpenBackend, prefix: str) -> None:
        backend.switches.hold(STEP, act())
        assert open_backend(prefix).switches.held() == backend.switches.held()

    @pytest.mark.usefixtures("full")
    def test_as_many_as_there_may_be(self, backend: Backend) -> None:
        assert len(backend.switches.held()) == MOST

    @pytest.mark.usefixtures("full")
    def test_one_more_is_refused(self, backend: Backend) -> None:
        with nothing_written(backend), pytest.raises(StoreError, match=f"^{MOST} sagas and steps are held"):
            backend.switches.hold(STEP, act())
        assert len(backend.switches.held()) == MOST

    @pytest.mark.usefixtures("full")
    def test_full_switches_can_be_released(self, backend: Backend) -> None:
        assert not backend.switches.hold("step 7", act())
        assert backend.switches.release("step 7", act("release"))
        assert backend.switches.hold(STEP, act())
        assert len(backend.switches.held()) == MOST

    def test_commits_go_on(self, backend: Backend) -> None:
        """A switch is about what workers begin, not about what is stored."""
        record = start_instance(backend)
        backend.switches.hold("order", act())
        assert update(backend, record).version == 2

    def test_switch_outlives_its_entry_in_the_audit(self, backend: Backend, clock: Clock) -> None:
        backend.switches.hold(STEP, act())
        clock.advance(HOUR)
        assert backend.audit.purge(1, 9) == 1
        assert [each.name for each in backend.switches.held()] == [STEP]
