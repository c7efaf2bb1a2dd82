-- The order of tenants in one Redis; what it means is said in fair_order.py.
-- ARGV: the operation, then what the function of that name takes.

local K = 1          -- jobs that wait in RQ's list beyond the workers that are known to be idle
local UNKNOWN = 1    -- seconds that a job is charged of which nobody knows how long it takes
local STEP = 1e-6    -- seconds between tenants that come in at the same virtual time, so that the first one stays first
local NEWEST = 0.2   -- weight of a job's run time in the mean of its tenant
local LOOK = 100     -- jobs of RQ's list that are read at a time

local RECORD = '<dddHIB'

local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000

local function key(name, queue) return 'tenant_slots:' .. name .. ':' .. queue end

local function read(queue, tenant)
  local raw = redis.call('HGET', key('tenants', queue), tenant)
  local record = {queue = queue, tenant = tenant, done = 0, ahead = 0, mean = -1, share = 1, offers = 0, parked = 0}
  if raw then
    record.done, record.ahead, record.mean, record.share, record.offers, record.parked = struct.unpack(RECORD, raw)
  end
  return record
end

local function write(record)
  local raw = struct.pack(RECORD, record.done, record.ahead, record.mean, record.share, record.offers, record.parked)
  redis.call('HSET', key('tenants', record.queue), record.tenant, raw)
end

local function number(queue, name) return tonumber(redis.call('HGET', key('times', queue), name) or nil) end

local function note(queue, name, value) redis.call('HSET', key('times', queue), name, string.format('%.17g', value)) end

local function score_of(record) return string.format('%.17g', record.done + record.ahead) end

local function charge_of(record)
  local seconds = record.mean
  if seconds < 0 then seconds = number(record.queue, 'mean') or UNKNOWN end
  return seconds / record.share
end

local function is_in(record) return redis.call('ZSCORE', key('order', record.queue), record.tenant) end

local function place(record) redis.call('ZADD', key('order', record.queue), score_of(record), record.tenant) end

-- Who comes back has neither credit nor debt beyond what it is charged for its last jobs.
local function enter(record)
  if is_in(record) then return end
  local virtual = (number(record.queue, 'virtual') or 0) + STEP
  note(record.queue, 'virtual', virtual)
  record.done = math.max(record.done, virtual - record.ahead)
  place(record)
end

local function is_ours(rq_id) return string.find(rq_id, '^%x+%-%x+%-%x+%-%x+%-%x+%-%d+$') ~= nil end

-- How many more jobs RQ's list may take. Workers of ours take their next job themselves; any other needs one ahead.
local function room(queue)
  local alive = redis.call('ZCOUNT', key('workers', queue), now, '+inf')
  local idle = redis.call('ZCOUNT', key('idle', queue), now, '+inf')
  local others = 0
  for _, worker in ipairs(redis.call('SMEMBERS', 'rq:workers:' .. queue)) do
    if not redis.call('ZSCORE', key('workers', queue), worker) then
      local state = redis.call('HGET', worker, 'state')
      if state then others = others + 1 end
      if state == 'idle' then idle = idle + 1 end
    end
  end
  local most = idle
  if others > 0 or alive == 0 then most = most + K end
  local there = 0
  if most > 0 then
    for _, rq_id in ipairs(redis.call('LRANGE', 'rq:queue:' .. queue, 0, 2 * most)) do
      if is_ours(rq_id) then there = there + 1 end
    end
  end
  return most - there
end

-- The first tenant and how many jobs it may have now: all, while nobody else wants them. It is charged for these.
local function first(queue, most)
  local head = redis.call('ZRANGE', key('order', queue), 0, 0, 'WITHSCORES')
  if not head[1] then return false end
  local record = read(queue, head[1])
  note(queue, 'virtual', math.max(number(queue, 'virtual') or 0, tonumber(head[2])))
  local jobs = 1
  if most > 1 and redis.call('ZCARD', key('order', queue)) == 1 then jobs = most end
  record.ahead = record.ahead + jobs * charge_of(record)
  write(record)
  place(record)
  return {queue, record.tenant, jobs, record.offers}
end

local function settle(queue, tenant, seconds)
  local record = read(queue, tenant)
  local charged = charge_of(record)
  local swept = number(queue, 'swept') or 0
  if seconds > now - swept then charged = math.max(charged, (seconds - (now - swept)) / record.share) end
  record.ahead = math.max(0, record.ahead - charged)
  if seconds >= 0 then
    record.done = record.done + seconds / record.share
    local mean = number(queue, 'mean')
    note(queue, 'mean', mean and mean + NEWEST * (seconds - mean) or seconds)
    record.mean = record.mean < 0 and seconds or record.mean + NEWEST * (seconds - record.mean)
  end
  if is_in(record) then place(record) end
  write(record)
end

local operations = {}

-- Each of these tenants may have something to run. tenant and share in turn; a share of 0 is not known.
function operations.offer(queue, ...)
  local given = {...}
  for at = 1, #given, 2 do
    local record = read(queue, given[at])
    if tonumber(given[at + 1]) > 0 then record.share = tonumber(given[at + 1]) end
    record.offers = (record.offers + 1) % 2 ^ 32
    record.parked = 0
    enter(record)
    write(record)
  end
  return room(queue)
end

-- A tenant has room again: it is offered in this queue, and in those of the others where it was full before.
function operations.freed(tenant, seconds, queue, ...)
  if tonumber(seconds) ~= -2 then settle(queue, tenant, tonumber(seconds)) end
  local rooms = {}
  for at, lane in ipairs({queue, ...}) do
    local record = read(lane, tenant)
    if at == 1 or record.parked == 1 then
      record.offers = (record.offers + 1) % 2 ^ 32
      record.parked = 0
      enter(record)
      write(record)
      local free = room(lane)
      if free > 0 then rooms[#rooms + 1] = lane end
    end
  end
  return rooms
end

-- The next tenant to be admitted into RQ's list, if there is room.
function operations.next(queue)
  local free = room(queue)
  if free <= 0 then return false end
  return first(queue, free)
end

-- What a worker of ours is to do: run a tenant's next job, take one from RQ's list, or wait at that list.
function operations.take(worker, ttl, waits, ...)
  for _, queue in ipairs({...}) do
    redis.call('ZADD', key('workers', queue), now + ttl, worker)
    redis.call('ZREM', key('idle', queue), worker)
  end
  for _, queue in ipairs({...}) do
    local listed = redis.call('LINDEX', 'rq:queue:' .. queue, 0)
    local turn = false
    if not listed or (not is_ours(listed) and number(queue, 'plain') ~= 1) then turn = first(queue, 1) end
    if turn then
      note(queue, 'plain', 1)
      return turn
    end
    if listed then
      note(queue, 'plain', 0)
      return {queue}
    end
  end
  if waits == '1' then
    for _, queue in ipairs({...}) do redis.call('ZADD', key('idle', queue), now + ttl, worker) end
  end
  return false
end

-- The worker is there, and runs a job.
function operations.here(worker, ttl, ...)
  for _, queue in ipairs({...}) do redis.call('ZADD', key('workers', queue), now + ttl, worker) end
end

-- The worker is there for these queues no more, or has something to do.
function operations.leave(worker, is_over, ...)
  for _, queue in ipairs({...}) do
    redis.call('ZREM', key('idle', queue), worker)
    if is_over == '1' then redis.call('ZREM', key('workers', queue), worker) end
  end
end

-- The tenant had so many fewer jobs than it was charged for. It leaves the order, unless it was offered since.
function operations.drop(queue, tenant, unused, offers, parked)
  local record = read(queue, tenant)
  record.ahead = math.max(0, record.ahead - unused * charge_of(record))
  if record.offers == tonumber(offers) then
    record.parked = tonumber(parked)
    redis.call('ZREM', key('order', queue), tenant)
  elseif is_in(record) then
    place(record)
  end
  write(record)
end

-- The turn came to nothing, and the tenant keeps its place.
function operations.undo(queue, tenant, unused)
  local record = read(queue, tenant)
  record.ahead = math.max(0, record.ahead - unused * charge_of(record))
  if is_in(record) then place(record) end
  write(record)
end

-- What runs is charged for as long as it has run. tenant, jobs and their seconds in turn: a job counts at least the mean.
function operations.charge(queue, ...)
  local given = {...}
  for at = 1, #given, 3 do
    local record = read(queue, given[at])
    record.ahead = math.max(given[at + 1] * charge_of(record), given[at + 2] / record.share)
    if is_in(record) then place(record) end
    write(record)
  end
  note(queue, 'swept', now)
end

-- A pushed job at the end of a list with plain RQ jobs goes where the first two of these stand together: between them.
function operations.bring(queue, rq_id)
  local list = 'rq:queue:' .. queue
  local before, at = nil, 0
  repeat
    local some = redis.call('LRANGE', list, at, at + LOOK - 1)
    for _, listed in ipairs(some) do
      if listed == rq_id then return end
      local plain = not is_ours(listed) and listed
      if plain and before then
        if redis.call('LREM', list, -1, rq_id) == 1 then redis.call('LINSERT', list, 'AFTER', before, rq_id) end
        return
      end
      before = plain
    end
    at = at + LOOK
  until #some < LOOK
end

return operations[ARGV[1]](unpack(ARGV, 2))
