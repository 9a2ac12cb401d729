CREATE TABLE saga_aggregator (
    prefix TEXT COLLATE "C" NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (name, prefix)
);

CREATE TABLE saga_app (
    prefix TEXT COLLATE "C" NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (prefix)
);

CREATE TABLE saga_buffer (
    prefix TEXT COLLATE "C" NOT NULL,
    number BIGSERIAL NOT NULL,
    group_digest TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    payload TEXT NOT NULL,
    at BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT saga_buffer_key UNIQUE (key, prefix)
);

CREATE INDEX saga_buffer_state ON saga_buffer (group_digest, state, prefix, number);

CREATE TABLE saga_database (
    number INTEGER NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (number)
);

CREATE TABLE saga_dead (
    prefix TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    task TEXT NOT NULL,
    message_id TEXT NOT NULL,
    saga TEXT NOT NULL,
    key TEXT NOT NULL,
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
    prefix TEXT COLLATE "C" NOT NULL,
    step TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    count INTEGER NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
);

CREATE INDEX saga_delivery_at ON saga_delivery (prefix, at) WHERE at > 0;

CREATE TABLE saga_group (
    prefix TEXT COLLATE "C" NOT NULL,
    group_digest TEXT COLLATE "C" NOT NULL,
    aggregator TEXT COLLATE "C" NOT NULL,
    grp TEXT COLLATE "C" NOT NULL,
    free INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    unresolved INTEGER NOT NULL,
    oldest BIGINT NOT NULL,
    oldest_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    fired_to BIGINT NOT NULL,
    fired_why TEXT COLLATE "C" NOT NULL,
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
    prefix TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    saga TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    schema_version INTEGER NOT NULL,
    data TEXT NOT NULL,
    pending TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    locked_by TEXT COLLATE "C" NOT NULL,
    locked_until BIGINT NOT NULL,
    PRIMARY KEY (id, prefix),
    CONSTRAINT saga_instance_key UNIQUE (key, saga, prefix)
);

CREATE TABLE saga_journal (
    prefix TEXT COLLATE "C" NOT NULL,
    step TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    attempt TEXT COLLATE "C" NOT NULL,
    outcome TEXT COLLATE "C" NOT NULL,
    saga TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    instance_id TEXT COLLATE "C" NOT NULL,
    version BIGINT NOT NULL,
    detail TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
);

CREATE INDEX saga_journal_at ON saga_journal (prefix, at) WHERE at > 0;

CREATE INDEX saga_journal_key ON saga_journal (key, saga, prefix, at);

CREATE TABLE saga_key (
    prefix TEXT COLLATE "C" NOT NULL,
    saga TEXT COLLATE "C" NOT NULL,
    property TEXT COLLATE "C" NOT NULL,
    value TEXT COLLATE "C" NOT NULL,
    instance_id TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (value, property, prefix, saga)
);

CREATE INDEX saga_key_instance ON saga_key (instance_id, prefix);

CREATE TABLE saga_layout (
    version INTEGER NOT NULL,
    oldest INTEGER NOT NULL,
    PRIMARY KEY (version)
);

CREATE TABLE saga_lease (
    prefix TEXT COLLATE "C" NOT NULL,
    group_digest TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    reason TEXT COLLATE "C" NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY (group_digest, token, prefix)
);

CREATE TABLE saga_outbox (
    prefix TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    message_id TEXT COLLATE "C" NOT NULL,
    task TEXT COLLATE "C" NOT NULL,
    payload TEXT NOT NULL,
    due_at BIGINT NOT NULL,
    available_at BIGINT NOT NULL,
    leased_until BIGINT NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    instance_id TEXT COLLATE "C" NOT NULL,
    step TEXT COLLATE "C" NOT NULL,
    cause TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (id, prefix)
);

CREATE INDEX saga_outbox_available ON saga_outbox (prefix, available_at) WHERE available_at > 0;

CREATE INDEX saga_outbox_cause ON saga_outbox (cause, prefix);

CREATE INDEX saga_outbox_instance ON saga_outbox (instance_id, prefix) WHERE kind != 'sent';

CREATE TABLE saga_seen (
    prefix TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY (key, prefix)
);

CREATE INDEX saga_seen_ends ON saga_seen (prefix, ends_at) WHERE ends_at > 0;

INSERT INTO saga_layout (version, oldest) VALUES (5, 5);
