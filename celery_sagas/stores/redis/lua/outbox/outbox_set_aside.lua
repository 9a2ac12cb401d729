-- uses: index rows
-- Take rows that cannot be read out of the order in which rows are due. They stay in the outbox, for operators.
-- KEYS: outbox, due, leases, failures, index
-- ARGV: token, id of each row
-- Answers with: nothing.
-- A repeat finds nothing left to take out.
check_rows()
for _, id in ipairs(held_by(ARGV[1], 2)) do redis.call('ZREM', due, id) end
