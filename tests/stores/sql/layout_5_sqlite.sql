CREATE TABLE saga_aggregator (
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (name, prefix)
);

CREATE TABLE saga_app (
    prefix TEXT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (prefix)
);

CREATE TABLE saga_buffer (
    prefix TEXT NOT NULL,
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    group_digest TEXT NOT NULL,
    "key" TEXT NOT NULL,
    id TEXT NOT NULL,
    payload TEXT NOT NULL,
    at BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT NOT NULL,
    token TEXT NOT NULL,
    CONSTRAINT saga_buffer_key UNIQUE ("key", prefix)
);

CREATE INDEX saga_buffer_state ON saga_buffer (group_digest, state, prefix, number);

CREATE TABLE saga_database (
    number INTEGER NOT NULL,
    id TEXT NOT NULL,
    PRIMARY KEY (number)
);

CREATE TABLE saga_dead (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    task TEXT NOT NULL,
    message_id TEXT NOT NULL,
    saga TEXT NOT NULL,
    "key" TEXT NOT NULL,
    error TEXT NOT NULL,
    text TEXT NOT NULL,
    traceback TEXT NOT NULL,
    payload TEXT NOT NULL,
    at BIGINT NOT NULL,
    number BIGINT NOT NULL,
    buffered_at BIGINT NOT NULL,
    PRIMARY KEY (id, prefix)
);

CREATE INDEX saga_dead_at ON saga_dead (prefix, at, id);

CREATE TABLE saga_delivery (
    prefix TEXT NOT NULL,
    step TEXT NOT NULL,
    message_id TEXT NOT NULL,
    count INTEGER NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
);

CREATE INDEX saga_delivery_at ON saga_delivery (prefix, at);

CREATE TABLE saga_group (
    prefix TEXT NOT NULL,
    group_digest TEXT NOT NULL,
    aggregator TEXT NOT NULL,
    grp TEXT NOT NULL,
    free INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    unresolved INTEGER NOT NULL,
    oldest BIGINT NOT NULL,
    oldest_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    fired_to BIGINT NOT NULL,
    fired_why TEXT NOT NULL,
    flush_requested_until BIGINT NOT NULL,
    paused_until BIGINT NOT NULL,
    lease_end BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    removals BIGINT NOT NULL,
    PRIMARY KEY (group_digest, prefix)
);

CREATE INDEX saga_group_due ON saga_group (aggregator, prefix, due_at, grp) WHERE due_at > 0;

CREATE INDEX saga_group_name ON saga_group (aggregator, prefix, grp);

CREATE INDEX saga_group_unresolved ON saga_group (aggregator, prefix, group_digest, unresolved) WHERE unresolved > 0;

CREATE TABLE saga_instance (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    saga TEXT NOT NULL,
    "key" TEXT NOT NULL,
    version BIGINT NOT NULL,
    schema_version INTEGER NOT NULL,
    data TEXT NOT NULL,
    pending TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    locked_by TEXT NOT NULL,
    locked_until BIGINT NOT NULL,
    PRIMARY KEY (id, prefix),
    CONSTRAINT saga_instance_key UNIQUE ("key", saga, prefix)
);

CREATE TABLE saga_journal (
    prefix TEXT NOT NULL,
    step TEXT NOT NULL,
    message_id TEXT NOT NULL,
    attempt TEXT NOT NULL,
    outcome TEXT NOT NULL,
    saga TEXT NOT NULL,
    "key" TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    detail TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
);

CREATE INDEX saga_journal_at ON saga_journal (prefix, at);

CREATE INDEX saga_journal_key ON saga_journal ("key", saga, prefix, at);

CREATE TABLE saga_key (
    prefix TEXT NOT NULL,
    saga TEXT NOT NULL,
    property TEXT NOT NULL,
    value TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    PRIMARY KEY (value, property, prefix, saga)
);

CREATE INDEX saga_key_instance ON saga_key (instance_id, prefix);

CREATE TABLE saga_layout (
    version INTEGER NOT NULL,
    oldest INTEGER NOT NULL,
    PRIMARY KEY (version)
);

CREATE TABLE saga_lease (
    prefix TEXT NOT NULL,
    group_digest TEXT NOT NULL,
    token TEXT NOT NULL,
    reason TEXT NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY (group_digest, token, prefix)
);

CREATE TABLE saga_outbox (
    prefix TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    message_id TEXT NOT NULL,
    task TEXT NOT NULL,
    payload TEXT NOT NULL,
    due_at BIGINT NOT NULL,
    available_at BIGINT NOT NULL,
    leased_until BIGINT NOT NULL,
    token TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    instance_id TEXT NOT NULL,
    step TEXT NOT NULL,
    cause TEXT NOT NULL,
    PRIMARY KEY (id, prefix)
);

CREATE INDEX saga_outbox_available ON saga_outbox (prefix, available_at);

CREATE INDEX saga_outbox_cause ON saga_outbox (cause, prefix);

CREATE INDEX saga_outbox_instance ON saga_outbox (instance_id, prefix) WHERE kind != 'sent';

CREATE TABLE saga_seen (
    prefix TEXT NOT NULL,
    "key" TEXT NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY ("key", prefix)
);

CREATE INDEX saga_seen_ends ON saga_seen (prefix, ends_at);

INSERT INTO saga_layout (version, oldest) VALUES (5, 5);
