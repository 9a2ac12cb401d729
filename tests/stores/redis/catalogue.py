"""The keys that the scripts may write, each with its type as the command ``TYPE`` names it.

``<saga>`` is a saga's stored name, ``<aggregator>`` an aggregator's, and ``<group>`` stands for
``<characters of aggregator>:<aggregator>:<group>``.
"""

#: The one key that expires.
ANSWER = "answer:<call>"
#: By what follows the hash tag ``{<prefix>:<shard>}``.
SHARD_KEYS = {
    "instances:<saga>": "hash",
    "keys:<saga>": "hash",
    "listed:<saga>": "zset",
    "locks": "hash",
    "journal": "hash",
    "journal:order": "list",
    "journal:heads": "hash",
    "journal:completed": "hash",
    "audit": "hash",
    "audit:order": "zset",
    "switches": "hash",
    "outbox": "hash",
    "outbox:due": "zset",
    "outbox:leases": "hash",
    "outbox:failures": "hash",
    "outbox:index": "zset",
    "buffer:groups:<aggregator>": "hash",
    "buffer:order:<aggregator>": "zset",
    "buffer:due:<aggregator>": "zset",
    "buffer:items:<aggregator>": "hash",
    "buffer:fresh:<group>": "list",
    "buffer:fresh_ids:<aggregator>": "hash",
    "buffer:attempts:<aggregator>": "hash",
    "buffer:unread:<aggregator>": "zset",
    "buffer:free:<group>": "zset",
    "buffer:leases:<group>": "hash",
    "buffer:leased:<group>": "hash",
    "buffer:seen": "zset",
    "buffer:sequence": "hash",
    "buffer:names": "zset",
    "dead_letters": "hash",
    "dead_letters:at": "zset",
    ANSWER: "string",
}
#: By what follows the hash tag ``{<prefix>:dead}``, of what has to do with messages that fail.
DEAD_KEYS = {
    "dead_letters": "hash",
    "dead_letters:at": "zset",
    "deliveries": "hash",
    "deliveries:at": "zset",
    ANSWER: "string",
}
#: The type of the key ``{<prefix>:meta}`` itself.
META_KEY = "hash"
