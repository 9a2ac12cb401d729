"""Sixty small faults, each of which breaks a promise: what the tests notice of them tells how good the tests are.

A fault is a text that stands once in a file of the package, and another that a developer might have written in its place. None
is equivalent: each can be observed, if only in a race, at the very millisecond, or when a server goes away at the wrong moment.
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    """One fault."""

    area: str
    file: str  #: in the package
    old: str
    new: str
    breaks: str  #: the promise, as one sentence that does not hold any more


COMMITS = (
    Mutation(
        "commits",
        "engine/conflicts.py",
        "return self.seen > self.retries\n",
        "return self.seen >= self.retries\n",
        "A step runs again as often as saga_conflict_retries says before its instance is locked.",
    ),
    Mutation(
        "commits",
        "engine/unit_of_work.py",
        "Handling(delivery.step.names, delivery.message_id)",
        "Handling((delivery.step.name,), delivery.message_id)",
        "A message that was handled under a former name of its step is recognized.",
    ),
    Mutation(
        "commits",
        "engine/handling.py",
        "            self._count = answer\n",
        "            pass\n",
        "A delivery is counted once, however often its step runs after conflicts.",
    ),
    Mutation(
        "commits",
        "engine/instance.py",
        "return tuple(sorted(new - old)), tuple(sorted(old - new))",
        "return tuple(sorted(new - old)), ()",
        "An alternate key that an instance no longer has may be used by others.",
    ),
    Mutation(
        "commits",
        "core/pending.py",
        "        if name is None:\n            return False\n",
        "        if name is None:\n            return True\n",
        "A timeout that was cancelled or replaced does not run.",
    ),
    Mutation(
        "commits",
        "engine/commit.py",
        "Pending(*kept, pending.paused, pending.trace, pending.more))\n",
        "Pending(*kept, pending.paused, pending.trace))\n",
        "What newer code keeps with an instance is written back as it is.",
    ),
)

SQL = (
    Mutation(
        "sql",
        "stores/sql/sagas/instances.py",
        "**next_version(), **NOBODY)",
        "**next_version())",
        "An update ends the lock of its owner.",
    ),
    Mutation(
        "sql",
        "stores/sql/sagas/instances.py",
        'where(_is_key(), key.c.instance_id == bound(key.c.instance_id, "instance_id"))',
        "where(_is_key())",
        "An update removes alternate keys of its own instance alone.",
    ),
    Mutation(
        "sql",
        "stores/sql/sagas/transactions.py",
        '"property": property, "value": value}, is_required=True)',
        '"property": property, "value": value})',
        "A commit is refused if a key that it adds is there under a former name of the saga.",
    ),
    Mutation(
        "sql",
        "stores/sql/sagas/postgresql.py",
        'keys = delete_keys().where(_is_changed(changed)).cte("removed")',
        'keys = delete_keys().cte("removed")',
        "A stale delete writes nothing: the keys of the instance stay.",
    ),
    Mutation(
        "sql",
        "stores/sql/sagas/lookups.py",
        "key.join(instance, and_(_is_named(names), instance.c.id == key.c.instance_id))",
        "key.join(instance, and_(instance.c.prefix == PREFIX, instance.c.id == key.c.instance_id))",
        "An instance of another saga is never found, also by an alternate key.",
    ),
    Mutation(
        "sql",
        "stores/sql/sagas/sagas.py",
        'return "unique" if adds_keys or not found else "locked"',
        'return "unique" if not found else "locked"',
        'An update that adds a key which is there under a former name conflicts for the reason "unique".',
    ),
    Mutation(
        "sql",
        "stores/sql/connection/database.py",
        '            if step.is_required and not rows:\n                self.end("ROLLBACK")\n',
        '            if step.is_required and not rows:\n                self.end("COMMIT")\n',
        "A commit writes all of its parts or none.",
    ),
)

LUA = (
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_update.lua",
        "and ARGV[7] == '0' and ARGV[8] == '0' then",
        "and ARGV[7] == '0' then",
        "An update removes the rows that it cancels, also if it writes no others.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_update.lua",
        "local said = handled() or changed(id, version, owner)\n",
        "local said = changed(id, version, owner) or handled()\n",
        "Where a message was committed already, that comes first: never RevisionConflict.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/parts/alternate_keys.lua",
        "for name = 13, #KEYS do",
        "for name = 13, 13 do",
        "A key that a live instance holds under a former name of the saga cannot be inserted.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_find.lua",
        "  if entry then break end\n",
        "",
        "The entry of a message is found under any of its step's names.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/journal/journal_purge.lua",
        "if redis.call('HGET', completed, subject) == digest then redis.call('HDEL', completed, subject) end",
        "redis.call('HDEL', completed, subject)",
        "The newest completion of a key is known for as long as its own entry is kept.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/journal/journal_history.lua",
        "  if entry and found and tonumber(found) ~= number then entry = nil end\n",
        "",
        "A history names each entry once, in its place, also if one was purged and its message committed again.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_delete.lua",
        "  if not is_tag(path) then free(id, path) end\n",
        "",
        "The alternate keys of an instance go with it, and may be used by others.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_delete.lua",
        "  if is_tag(path) then members[#members + 1] = path .. id end\n",
        "",
        "The tags of an instance go with it.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_update.lua",
        "is_moved = updated_at - updated_at % SLOT ~= now - now % SLOT",
        "is_moved = false",
        "A change in the next slot moves the instance in the order of pages.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/parts/key_changes.lua",
        "    if is_tag(path) then redis.call('ZREM', listed, path .. id) end\n",
        "",
        "An update removes the tags that it says.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/sagas/saga_rename.lua",
        "  for _, member in ipairs(members) do redis.call('ZADD', new_listed, 0, member) end\n",
        "",
        "A renamed instance takes its place in the order of pages and its tags along.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/instances/instances_page.lua",
        "  if not is_tag(member) and place(updated_at, id) ~= member then return nil end\n",
        "",
        "An instance that does not change between two pages comes once, whatever older code has left of it.",
    ),
    Mutation(
        "lua",
        "stores/redis/lua/instances/instances_sweep.lua",
        "    if other then redis.call('ZADD', listed, 0, other) end\n",
        "",
        "An instance that older code has moved is listed once it is indexed, whichever walk has seen it before.",
    ),
)

OUTBOX = (
    Mutation(
        "outbox",
        "stores/sql/outbox.py",
        "order = (outbox.c.available_at, outbox.c.id)",
        "order = (outbox.c.id,)",
        "The rows that have been due for the longest time are claimed first.",
    ),
    Mutation(
        "outbox",
        "stores/sql/outbox.py",
        'outbox.c.leased_until > now(), outbox.c.attempts == literal("0"))',
        "outbox.c.leased_until > now())",
        "A row whose publishing has failed keeps nobody waiting: it is not counted as leased.",
    ),
    Mutation(
        "outbox",
        "stores/redis/lua/outbox/outbox_fail.lua",
        "if not is_of(redis.call('HGET', leases, id), ARGV[3]) then return 0 end",
        "if redis.call('HEXISTS', outbox, id) == 0 then return 0 end",
        "A row that another token has claimed since is left alone.",
    ),
    Mutation(
        "outbox",
        "engine/outbox/dispatch.py",
        "            leased, started = self.outbox.count_leased(entry), self.clock()  # counted first: a lease may "
        "end in between\n"
        "            rows = self.outbox.claim_due(self.owner, _CLAIMED_AT_ONCE, int(self.grace_s * 1000), entry)\n"
        "            if not rows:\n",
        "            started = self.clock()\n"
        "            rows = self.outbox.claim_due(self.owner, _CLAIMED_AT_ONCE, int(self.grace_s * 1000), entry)\n"
        "            if not rows:\n"
        "                leased = self.outbox.count_leased(entry)\n",
        "A repeat is not acknowledged while a message of its first run is unpublished, also if a lease ends meanwhile.",
    ),
    Mutation(
        "outbox",
        "engine/outbox/confirmations.py",
        "with OnFailure(lambda: self._keep(published)):",
        "with OnFailure(list):",
        "What cannot be removed from the outbox now is tried again, while the lease lasts.",
    ),
    Mutation(
        "outbox",
        "worker/publishing/confirms.py",
        "if each <= number] if multiple",
        "if each < number] if multiple",
        "A confirmation of several messages is one of the last of them, too.",
    ),
)

RELAY = (
    Mutation(
        "relay",
        "engine/relay.py",
        "or self.sweep.is_broker_away or self.relay.clock() > self.until\n",
        "or self.sweep.is_broker_away\n",
        "A relay stops publishing at half of its lease: whoever claims the rows then must be alone.",
    ),
    Mutation(
        "relay",
        "engine/relay.py",
        "if row.attempts + 1 >= self.relay.terms.max_attempts:",
        "if row.attempts >= self.relay.terms.max_attempts:",
        "A message that cannot be published is a dead letter after saga_max_deliveries attempts.",
    ),
    Mutation(
        "relay",
        "engine/relay.py",
        "        add_dead_letter(self.relay.backend, dead_letter)\n",
        "        self.outbox.confirm(self.token, [row.id])\n        add_dead_letter(self.relay.backend, dead_letter)\n",
        "A row that is given up is a dead letter before it leaves the outbox.",
    ),
    Mutation(
        "relay",
        "engine/relay.py",
        "for row in left if row.id not in self.unconfirmed]",
        "for row in left]",
        "A row of which nobody knows whether it has arrived is left alone until its lease has ended, if the broker goes away.",
    ),
    Mutation(
        "relay",
        "engine/outbox/publishing.py",
        "        publisher.probe()\n",
        "",
        "No failure is counted against a row while an outage of the broker explains it.",
    ),
    Mutation(
        "relay",
        "engine/aggregators/groups.py",
        "groups[-1] if len(groups) == LOOKED_AT else None",
        "None",
        "No group is forgotten: after a start each is looked at by the rules of today, however many there are.",
    ),
    Mutation(
        "relay",
        "engine/relay.py",
        "if PURGED_AT_ONCE * PURGES in counts:",
        "if PURGED_AT_ONCE * PURGES == counts[-1]:",
        "What is more than one sweep may remove is removed by the sweeps that follow.",
    ),
)

LEASES = (
    Mutation(
        "leases",
        "stores/sql/sagas/instances.py",
        "or_(instance.c.locked_until <= now(),",
        "or_(instance.c.locked_until < now(),",
        "A lock has ended when its time is over, for a commit as for the find before it.",
    ),
    Mutation(
        "leases",
        "stores/sql/outbox.py",
        '{"available_at": now() + delay_ms, "leased_until": literal("0", BigInteger())}',
        '{"available_at": now() + delay_ms}',
        "A row that was released is under no lease, and is not counted as leased.",
    ),
    Mutation(
        "leases",
        "stores/sql/aggregators/flushes.py",
        "        self._leases[token] = self._leases[token]._replace(ends_at=ends_at)\n",
        "",
        "A group whose lease was renewed is due when the renewed lease ends.",
    ),
    Mutation(
        "leases",
        "stores/redis/lua/parts/leases.lua",
        "or ends_at < group.lease_end then",
        "or ends_at > group.lease_end then",
        "A group is due when the first of its leases ends.",
    ),
    Mutation(
        "leases",
        "stores/redis/lua/parts/outgoing.lua",
        "if due_since <= 0 then add(leased, id, ' ' .. lease[1]) end",
        "add(leased, id, ' ' .. lease[1])",
        "A row with a due time is written under no lease.",
    ),
    Mutation(
        "leases",
        "engine/outbox/dispatch.py",
        "committed_at + self.grace_s / 2, deque(rows)",
        "committed_at + self.grace_s, deque(rows)",
        "Whoever has committed a message stops publishing it at half of saga_dispatch_grace.",
    ),
    Mutation(
        "leases",
        "engine/aggregators/renewal.py",
        'is tried again: %s", self._subject, exc)\n            return True\n',
        'is tried again: %s", self._subject, exc)\n            return False\n',
        "A lease is renewed again after the store was away: two renewals may fail.",
    ),
)

REQUESTS = (
    Mutation(
        "requests",
        "core/pending.py",
        "is_uncertain = came in (ReplyKind.DEADLINE, ReplyKind.UNCERTAIN) and",
        "is_uncertain = came == ReplyKind.DEADLINE and",
        "After an uncertain failure a late answer is still handled.",
    ),
    Mutation(
        "requests",
        "core/pending.py",
        '        """Cancel the timeout or the series of a name, if there is one."""\n        self.new_timeouts.pop(name, None)\n',
        '        """Cancel the timeout or the series of a name, if there is one."""\n',
        "A timeout that its own step cancels again does not come.",
    ),
    Mutation(
        "requests",
        "core/pending.py",
        "        if request.row:\n            self.cancelled.append(request.row)\n",
        "",
        "The deadline of a request that was answered leaves the outbox with the answer's commit.",
    ),
    Mutation(
        "requests",
        "worker/asking/message.py",
        'if deadline and member.options.get("expires") is None:',
        "if deadline:",
        "A message that is asked keeps an expiry of its own.",
    ),
    Mutation(
        "requests",
        "engine/unit_of_work.py",
        "    _send_answer(run, run.delivery.asked_by, NO_VALUE)\n    write = write_of(run, Kind.IGNORED",
        "    write = write_of(run, Kind.IGNORED",
        "A message that is ignored, since its instance exists, is answered with None.",
    ),
    Mutation(
        "requests",
        "engine/requests/gathering.py",
        "if added.needs_flush or (not added.added and self._may_be_over(gather, request)):",
        "if added.needs_flush:",
        "A last answer that is delivered again ends its gather, if whoever kept it first has died.",
    ),
    Mutation(
        "requests",
        "worker/failures/notifications.py",
        "is_uncertain = may_be_answered or failure.dead_letter or",
        "is_uncertain = may_be_answered or",
        "The answer to a dead letter that is retried is handled as a late one.",
    ),
)

HEADERS = (
    Mutation(
        "headers",
        "engine/session.py",
        "        self.causation.pop(saga, None)\n",
        "",
        "Of too many sagas in a causation the oldest is left out, and not the one whose step runs.",
    ),
    Mutation(
        "headers",
        "engine/session.py",
        'with OnFailure(lambda: setattr(self, "causation", inherited)):',
        "with OnFailure(list):",
        "A run that is not committed leaves nothing behind, also in the headers of what its task publishes then.",
    ),
    Mutation(
        "headers",
        "worker/headers.py",
        "    if not is_stamped(headers):\n        headers.update(causation_headers(session))\n",
        "    headers.update(causation_headers(session))\n",
        "A message that bears its causation keeps it, whoever publishes it.",
    ),
    Mutation(
        "headers",
        "worker/serialization.py",
        "        of_chain = {}  # Celery gives them to the first task alone\n",
        "",
        "The headers of a chain go to its first task alone, as with Celery.",
    ),
    Mutation(
        "headers",
        "worker/sessions.py",
        "{task}/{_retries()}/{session.published}/",
        "{task}/{session.published}/",
        "A task that retries itself sends a message of its own in each run.",
    ),
    Mutation(
        "headers",
        "worker/operators.py",
        "if name not in _SPENT_HEADERS\n",
        "if name\n",
        "An operator's replay is a new message, also of one that its producer has named.",
    ),
)

BUFFERS = (
    Mutation(
        "buffers",
        "stores/sql/aggregators/additions.py",
        "        if readable:\n            row.last_at = self._now\n",
        "        row.last_at = self._now\n        if readable:\n",
        "An item that cannot be read does not count as the last to come.",
    ),
    Mutation(
        "buffers",
        "stores/redis/lua/parts/adding.lua",
        "tonumber(found) > now",
        "tonumber(found) >= now",
        "An id is known for less than remember_ms after its item was removed, and not at its end.",
    ),
    Mutation(
        "buffers",
        "stores/sql/aggregators/joining.py",
        "conditions = [*is_it, of.removals == removals.scalar_subquery(), of.free",
        "conditions = [*is_it, of.free",
        "An item is not buffered twice, also if it was removed while its repeat looked for it.",
    ),
    Mutation(
        "buffers",
        "stores/redis/lua/parts/joining.lua",
        "free + 1 >= size",
        "free >= size",
        "The item that makes a batch full has its flush asked for.",
    ),
    Mutation(
        "buffers",
        "stores/redis/lua/aggregators/aggregate_remove.lua",
        "drop_items(rejected, rejected_digests, now, remember_ms)",
        "drop_items(rejected, rejected_digests, now, 0)",
        "The ids of rejected items are remembered like those of any that leave the buffer.",
    ),
    Mutation(
        "buffers",
        "engine/aggregators/flush.py",
        "if verdict.is_counted and self._was_last(snapshot):",
        "if self._was_last(snapshot):",
        "An item is not rejected for a failure that does not count, such as a retry that its function asks for.",
    ),
    Mutation(
        "buffers",
        "stores/redis/lua/aggregators/aggregate_claim.lua",
        "  if reason == 'age' or reason == 'idle' then fire_trigger(group, last_free(group), reason) end\n",
        "",
        "A trigger that was fired by time stays fired for everything that was free at this moment.",
    ),
)

MUTATIONS = (*COMMITS, *SQL, *LUA, *OUTBOX, *RELAY, *LEASES, *REQUESTS, *HEADERS, *BUFFERS)
