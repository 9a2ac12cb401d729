-- uses: clock
-- Tell the time. It only reads.
-- KEYS: outbox, for its place in a cluster
-- ARGV: now (ms, or empty)
-- Answers with: the time (ms).
return clock(ARGV[1])
