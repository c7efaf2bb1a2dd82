-- See beside.py. ARGV: the operation, the key of RQ's record of a job and its id, the names of our fields in that, what the
-- keys of RQ's registries of scheduled jobs and of its lists begin with, the row of the run, and more by the operation.
local record, id, AGAIN, RUN, SCHEDULED, LIST, run = unpack(ARGV, 2, 8)
local OURS = ' ended' -- behind what the record says of a run
local FRACTION = '%.5$' -- of when an entry of ours is due

local operations = {}

local function noted()
  local found = redis.call('HGET', record, RUN)
  return found and found:sub(1, #run) == run and found
end

-- What another delivery has left that waits for this run.
local function marked()
  local mark = redis.call('HGET', record, AGAIN) or ''
  local of, kind, due, queue = mark:match('^(%S+) (%S+) (%S+) %S+ (.*)$')
  if of == run then return kind, due, queue end
end

local function entry(queue) return redis.call('ZSCORE', SCHEDULED .. queue, id) end

local function is_ours(scheduled) return scheduled and scheduled:find(FRACTION) end

local function take_back(queue)
  if is_ours(entry(queue)) then redis.call('ZREM', SCHEDULED .. queue, id) end
end

local function push(queue) redis.call('RPUSH', LIST .. queue, id) end

function operations.comes_back(kind, due, queue)
  local of_run = noted()
  if of_run and of_run:sub(-#OURS) == OURS then
    if kind == 'anew' then push(queue) end
    return
  end
  local before, _, queue_before = marked()
  if before == 'anew' then kind, queue = before, queue_before end
  local scheduled = entry(queue)
  if not scheduled then
    redis.call('ZADD', SCHEDULED .. queue, due, id)
  elseif is_ours(scheduled) then
    due = scheduled
  elseif kind == 'copy' then
    return
  else
    due = '-'
  end
  if before and queue_before ~= queue then take_back(queue_before) end
  local made = redis.call('HGET', record, 'created_at') or '-'
  redis.call('HSET', record, AGAIN, table.concat({run, kind, due, made, queue}, ' '))
end

local function is_retried_by_cleaning(retries_left)
  local left = tonumber(redis.call('HGET', record, 'retries_left') or '')
  return left and left + 1 == tonumber(retries_left)
end

local function ends_copy(due, queue)
  local scheduled = entry(queue)
  if scheduled == due then redis.call('ZREM', SCHEDULED .. queue, id) end
  if scheduled then redis.call('HDEL', record, AGAIN) end
end

local function starts_anew(due, queue)
  local scheduled = entry(queue)
  redis.call('HDEL', record, AGAIN)
  if scheduled == due then redis.call('ZREM', SCHEDULED .. queue, id) end
  if scheduled or due == '-' then push(queue) end
end

-- Somebody has deleted the job since, and with it the call that was to come back.
local function ends_unmarked(queue)
  if not redis.call('HGET', record, AGAIN) then take_back(queue) end
end

function operations.has_ended(retries_left, queue)
  local of_run = noted()
  if of_run and of_run:sub(-#OURS) ~= OURS then redis.call('HSET', record, RUN, of_run .. OURS) end
  if is_retried_by_cleaning(retries_left) then redis.call('ZREM', SCHEDULED .. queue, id) end
  local kind, due, waits_in = marked()
  if kind == 'copy' then ends_copy(due, waits_in) end
  if kind == 'anew' then starts_anew(due, waits_in) end
  if waits_in ~= queue then ends_unmarked(queue) end
end

function operations.had_ended(queue)
  local kind, due, waits_in = marked()
  if kind then
    redis.call('HDEL', record, AGAIN)
    if entry(waits_in) == due then redis.call('ZREM', SCHEDULED .. waits_in, id) end
  end
  if redis.call('HEXISTS', record, 'created_at') == 1 then push(queue) end
end

-- What was put off has the other fraction.
function operations.is_not_brought_back(queue, fraction)
  local scheduled = entry(queue)
  if scheduled and tonumber(scheduled) % 1 == tonumber(fraction) then redis.call('ZREM', SCHEDULED .. queue, id) end
end

operations[ARGV[1]](unpack(ARGV, 9))
