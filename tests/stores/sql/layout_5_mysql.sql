CREATE TABLE saga_aggregator (
    prefix VARBINARY(256) NOT NULL,
    name VARBINARY(1020) NOT NULL,
    PRIMARY KEY (name, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_app (
    prefix VARBINARY(256) NOT NULL,
    name LONGTEXT NOT NULL,
    PRIMARY KEY (prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_buffer (
    prefix VARBINARY(256) NOT NULL,
    number BIGINT NOT NULL AUTO_INCREMENT,
    group_digest VARBINARY(160) NOT NULL,
    `key` VARBINARY(160) NOT NULL,
    id VARBINARY(1020) NOT NULL,
    payload LONGTEXT NOT NULL,
    at BIGINT NOT NULL,
    attempts INTEGER NOT NULL,
    state VARBINARY(64) NOT NULL,
    token VARBINARY(1020) NOT NULL,
    PRIMARY KEY (number),
    CONSTRAINT saga_buffer_key UNIQUE (`key`, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_buffer_state ON saga_buffer (group_digest, state, prefix, number);

CREATE TABLE saga_database (
    number INTEGER NOT NULL,
    id VARBINARY(1020) NOT NULL,
    PRIMARY KEY (number)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_dead (
    prefix VARBINARY(256) NOT NULL,
    id VARBINARY(1020) NOT NULL,
    task LONGTEXT NOT NULL,
    message_id LONGTEXT NOT NULL,
    saga LONGTEXT NOT NULL,
    `key` LONGTEXT NOT NULL,
    error LONGTEXT NOT NULL,
    text LONGTEXT NOT NULL,
    traceback LONGTEXT NOT NULL,
    payload LONGTEXT NOT NULL,
    at BIGINT NOT NULL,
    number BIGINT NOT NULL,
    buffered_at BIGINT NOT NULL,
    PRIMARY KEY (id, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_dead_at ON saga_dead (prefix, at, id);

CREATE TABLE saga_delivery (
    prefix VARBINARY(256) NOT NULL,
    step VARBINARY(1020) NOT NULL,
    message_id VARBINARY(1020) NOT NULL,
    count INTEGER NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_delivery_at ON saga_delivery (prefix, at);

CREATE TABLE saga_group (
    prefix VARBINARY(256) NOT NULL,
    group_digest VARBINARY(160) NOT NULL,
    aggregator VARBINARY(1020) NOT NULL,
    grp VARBINARY(1020) NOT NULL,
    free INTEGER NOT NULL,
    leased INTEGER NOT NULL,
    unresolved INTEGER NOT NULL,
    oldest BIGINT NOT NULL,
    oldest_at BIGINT NOT NULL,
    last_at BIGINT NOT NULL,
    fired_to BIGINT NOT NULL,
    fired_why VARBINARY(64) NOT NULL,
    flush_requested_until BIGINT NOT NULL,
    paused_until BIGINT NOT NULL,
    lease_end BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    removals BIGINT NOT NULL,
    PRIMARY KEY (group_digest, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_group_due ON saga_group (aggregator, prefix, due_at, grp);

CREATE INDEX saga_group_name ON saga_group (aggregator, prefix, grp);

CREATE INDEX saga_group_unresolved ON saga_group (aggregator, prefix, group_digest, unresolved);

CREATE TABLE saga_instance (
    prefix VARBINARY(256) NOT NULL,
    id VARBINARY(1020) NOT NULL,
    saga VARBINARY(1020) NOT NULL,
    `key` VARBINARY(1020) NOT NULL,
    version BIGINT NOT NULL,
    schema_version INTEGER NOT NULL,
    data LONGTEXT NOT NULL,
    pending LONGTEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    locked_by VARBINARY(1020) NOT NULL,
    locked_until BIGINT NOT NULL,
    PRIMARY KEY (id, prefix),
    CONSTRAINT saga_instance_key UNIQUE (`key`, saga, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_journal (
    prefix VARBINARY(256) NOT NULL,
    step VARBINARY(1020) NOT NULL,
    message_id VARBINARY(1020) NOT NULL,
    attempt VARBINARY(1020) NOT NULL,
    outcome VARBINARY(1020) NOT NULL,
    saga VARBINARY(1020) NOT NULL,
    `key` VARBINARY(1020) NOT NULL,
    instance_id VARBINARY(1020) NOT NULL,
    version BIGINT NOT NULL,
    detail LONGTEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (message_id, step, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_journal_at ON saga_journal (prefix, at);

CREATE INDEX saga_journal_key ON saga_journal (`key`, saga, prefix, at);

CREATE TABLE saga_key (
    prefix VARBINARY(256) NOT NULL,
    saga VARBINARY(1020) NOT NULL,
    property VARBINARY(512) NOT NULL,
    value VARBINARY(1020) NOT NULL,
    instance_id VARBINARY(1020) NOT NULL,
    PRIMARY KEY (value, property, prefix, saga)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_key_instance ON saga_key (instance_id, prefix);

CREATE TABLE saga_layout (
    version INTEGER NOT NULL,
    oldest INTEGER NOT NULL,
    PRIMARY KEY (version)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_lease (
    prefix VARBINARY(256) NOT NULL,
    group_digest VARBINARY(160) NOT NULL,
    token VARBINARY(1020) NOT NULL,
    reason VARBINARY(64) NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY (group_digest, token, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE TABLE saga_outbox (
    prefix VARBINARY(256) NOT NULL,
    id VARBINARY(1020) NOT NULL,
    kind VARBINARY(1020) NOT NULL,
    message_id VARBINARY(1020) NOT NULL,
    task VARBINARY(1020) NOT NULL,
    payload LONGTEXT NOT NULL,
    due_at BIGINT NOT NULL,
    available_at BIGINT NOT NULL,
    leased_until BIGINT NOT NULL,
    token VARBINARY(1020) NOT NULL,
    attempts INTEGER NOT NULL,
    error LONGTEXT NOT NULL,
    instance_id VARBINARY(1020) NOT NULL,
    step VARBINARY(1020) NOT NULL,
    cause VARBINARY(1020) NOT NULL,
    PRIMARY KEY (id, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_outbox_available ON saga_outbox (prefix, available_at);

CREATE INDEX saga_outbox_cause ON saga_outbox (cause, prefix);

CREATE INDEX saga_outbox_instance ON saga_outbox (instance_id, prefix);

CREATE TABLE saga_seen (
    prefix VARBINARY(256) NOT NULL,
    `key` VARBINARY(160) NOT NULL,
    ends_at BIGINT NOT NULL,
    PRIMARY KEY (`key`, prefix)
)ENGINE=InnoDB CHARSET=utf8mb4 COLLATE utf8mb4_bin;

CREATE INDEX saga_seen_ends ON saga_seen (prefix, ends_at);

INSERT INTO saga_layout (version, oldest) VALUES (5, 5);
