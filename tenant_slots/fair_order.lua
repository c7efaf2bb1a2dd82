-- The order of tenants in one Redis; what it means is said in fair_order.py.
-- ARGV: the operation, what the function of that name takes, and then often a list of any length: `rest`.

local K = 1          -- jobs that wait in RQ's list beyond the workers that are known to be idle
local UNKNOWN = 1    -- seconds that a job is charged of which nobody knows how long it takes
local STEP = 1e-6    -- seconds between tenants that come in at the same virtual time, so that the first one stays first
local NEWEST = 0.2   -- weight of a job's run time in the mean of its tenant
local LOOK = 100     -- jobs of RQ's list that are read at a time

local FRONT = -1e15   -- score of tenants that come with nothing to their account, the first one first

local RECORD = '<dddddfHHIB'

local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000

local function key(name, queue) return 'tenant_slots:' .. name .. ':' .. queue end

-- done: virtual seconds of ended jobs. ahead: what those under way are charged. begun: the sum of their starts; jobs: how
-- many. mean: seconds a job takes, negative if not known. left: measured virtual time when it left the order, left_at: then.
-- offers: counts them. parked: it left because it was full.
local read_records = {}

local function read(queue, tenant)
  local name = queue .. ':' .. tenant
  if read_records[name] then return read_records[name] end
  local raw = redis.call('HGET', key('tenants', queue), tenant)
  local r = {queue = queue, tenant = tenant}
  read_records[name] = r
  if raw then
    r.done, r.ahead, r.begun, r.left, r.left_at, r.mean, r.jobs, r.share, r.offers, r.parked = struct.unpack(RECORD, raw)
  else
    r.done, r.ahead, r.begun, r.left, r.left_at, r.mean, r.jobs, r.share, r.offers, r.parked = 0, 0, 0, 0, 0, -1, 0, 1, 0, 0
  end
  return r
end

local function write(r) r.changed = true end

local function keep(r)
  local raw = struct.pack(
    RECORD, r.done, r.ahead, r.begun, r.left, r.left_at, r.mean, r.jobs, r.share, r.offers, r.parked
  )
  redis.call('HSET', key('tenants', r.queue), r.tenant, raw)
end

-- virtual: the queue's virtual time. newcomers: counts them. mean: of all jobs, negative if not known. swept: when the sweep
-- charged what runs. most: workers that were seen lately. plain: it is a tenant's turn before plain RQ jobs.
local TIMES = '<ddddHB'
local read_times = {}

local function times_of(queue)
  local t = read_times[queue]
  if not t then
    t = {virtual = 0, newcomers = 0, mean = -1, swept = 0, most = 0, plain = 0}
    local raw = redis.call('GET', key('times', queue))
    if raw then t.virtual, t.newcomers, t.mean, t.swept, t.most, t.plain = struct.unpack(TIMES, raw) end
    read_times[queue] = t
  end
  return t
end

local function note(queue, name, value)
  local t = times_of(queue)
  if t[name] == value then return end
  t[name], t.changed = value, true
end

local function keep_all()
  for queue, t in pairs(read_times) do
    if t.changed then
      local raw = struct.pack(TIMES, t.virtual, t.newcomers, t.mean, t.swept, math.min(65535, t.most), t.plain)
      redis.call('SET', key('times', queue), raw)
    end
  end
  for _, r in pairs(read_records) do
    if r.changed then keep(r) end
  end
end

local function score_of(record) return string.format('%.17g', record.done + record.ahead) end

local function charge_of(record)
  local seconds = record.mean
  if seconds < 0 then seconds = times_of(record.queue).mean end
  if seconds < 0 then seconds = UNKNOWN end
  return seconds / record.share
end

-- Its virtual time without what is only expected of the jobs under way.
local function measured(record)
  return record.done + math.max(0, record.jobs * now - record.begun) / record.share
end

local function begin(record, jobs)
  record.ahead = record.ahead + jobs * charge_of(record)
  record.begun = record.begun + jobs * now
  if record.jobs == 0 then redis.call('SADD', key('busy', record.queue), record.tenant) end
  record.jobs = math.min(65535, record.jobs + jobs)
end

-- So many jobs are under way no more, which were charged this much together and began at that moment.
local function finish(record, jobs, charged, moment)
  local before = record.jobs
  record.jobs = math.max(0, record.jobs - jobs)
  record.ahead = math.max(0, record.ahead - charged)
  record.begun = math.max(0, record.begun - jobs * moment)
  if record.jobs == 0 then
    record.ahead, record.begun = 0, 0
    if before > 0 then redis.call('SREM', key('busy', record.queue), record.tenant) end
  end
end

local function place_of(record) return redis.call('ZSCORE', key('order', record.queue), record.tenant) end

local function place(record) redis.call('ZADD', key('order', record.queue), score_of(record), record.tenant) end

-- What it is charged has changed. Who stands in front has nothing under way.
local function place_again(record)
  local score = place_of(record)
  if score and tonumber(score) >= 0 then place(record) end
end

-- The most workers that were seen lately; nobody knows: as many as you like.
local function workers_seen(queue)
  local most = times_of(queue).most
  return most > 0 and most or math.huge
end

-- Who comes back has no credit for the time that it was away. Of its debt it is forgiven what the workers can have done
-- meanwhile, and no more: a tenant that was full for a moment has not lost what it is owed.
local function enter(record)
  if place_of(record) then return end
  local virtual = times_of(record.queue).virtual + STEP
  note(record.queue, 'virtual', virtual)
  local start = virtual
  if record.left_at > 0 then
    local seconds = math.max(0, now - record.left_at)
    start = math.min(virtual, record.left + workers_seen(record.queue) * seconds)
  end
  record.done = math.max(record.done, start - record.ahead)
  if record.parked == 0 and record.jobs == 0 and record.done + record.ahead <= virtual then
    local newcomer = times_of(record.queue).newcomers + 1
    note(record.queue, 'newcomers', newcomer)
    redis.call('ZADD', key('order', record.queue), string.format('%.17g', FRONT + newcomer), record.tenant)
  else
    place(record)
  end
end

-- Its turn came to nothing. Who came with nothing to its account is first again.
local function stay(record)
  if record.jobs == 0 and record.done + record.ahead <= times_of(record.queue).virtual then
    redis.call('ZADD', key('order', record.queue), string.format('%.17g', FRONT), record.tenant)
  else
    place(record)
  end
end

-- Tenants that may start a job again by now, which they might not when they left.
local function wake(queue)
  for _, tenant in ipairs(redis.call('ZRANGEBYSCORE', key('wake', queue), '-inf', now)) do
    redis.call('ZREM', key('wake', queue), tenant)
    local record = read(queue, tenant)
    record.offers = (record.offers + 1) % 2 ^ 32
    enter(record)
    record.parked = 0
    write(record)
  end
end

local function exit(record, parked)
  record.left, record.left_at, record.parked = measured(record), now, parked
  redis.call('ZREM', key('order', record.queue), record.tenant)
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
  if alive + others > times_of(queue).most then note(queue, 'most', alive + others) end
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
  wake(queue)
  local head = redis.call('ZRANGE', key('order', queue), 0, 0)
  if not head[1] then return false end
  local record = read(queue, head[1])
  note(queue, 'virtual', math.max(times_of(queue).virtual, measured(record)))
  local jobs = 1
  if most > 1 and redis.call('ZCARD', key('order', queue)) == 1 then jobs = most end
  begin(record, jobs)
  write(record)
  place(record)
  return {queue, record.tenant, jobs, record.offers}
end

local function settle(queue, tenant, seconds)
  local record = read(queue, tenant)
  local charged = charge_of(record)
  local swept = times_of(queue).swept
  if seconds > now - swept then charged = math.max(charged, (seconds - (now - swept)) / record.share) end
  finish(record, 1, charged, seconds >= 0 and now - seconds or record.begun / math.max(1, record.jobs))
  if seconds >= 0 then
    record.done = record.done + seconds / record.share
    local mean = times_of(queue).mean
    note(queue, 'mean', mean < 0 and seconds or mean + NEWEST * (seconds - mean))
    record.mean = record.mean < 0 and seconds or record.mean + NEWEST * (seconds - record.mean)
  end
  place_again(record)
  write(record)
end

local operations = {}

-- What follows so many named arguments. A table, because a call may have no more than some thousand arguments.
local function rest(named)
  local list = {}
  for at = named + 2, #ARGV do list[#list + 1] = ARGV[at] end
  return list
end

-- Each of these tenants may have something to run. tenant and share in turn; a share of 0 is not known.
function operations.offer(queue)
  local given = rest(1)
  for at = 1, #given, 2 do
    local record = read(queue, given[at])
    if tonumber(given[at + 1]) > 0 then record.share = tonumber(given[at + 1]) end
    record.offers = (record.offers + 1) % 2 ^ 32
    enter(record)
    record.parked = 0
    write(record)
  end
  return room(queue)
end

-- tenant and share in turn, of those that are known here.
function operations.share(queue)
  local given = rest(1)
  for at = 1, #given, 2 do
    if redis.call('HEXISTS', key('tenants', queue), given[at]) == 1 then
      local record = read(queue, given[at])
      record.share = tonumber(given[at + 1])
      write(record)
    end
  end
end

-- A tenant has room again: it is offered in this queue, and in those of the others where it was full before. Who takes a
-- turn next does not look for room in the list.
function operations.freed(tenant, seconds, looks)
  local queues = rest(3)
  if tonumber(seconds) ~= -2 then settle(queues[1], tenant, tonumber(seconds)) end
  local rooms = {}
  for at, lane in ipairs(queues) do
    local record = read(lane, tenant)
    if at == 1 or record.parked == 1 then
      record.offers = (record.offers + 1) % 2 ^ 32
      enter(record)
      record.parked = 0
      write(record)
      if (looks == '1' or at > 1) and room(lane) > 0 then rooms[#rooms + 1] = lane end
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
function operations.take(worker, ttl, waits)
  local queues = rest(3)
  for _, queue in ipairs(queues) do
    redis.call('ZADD', key('workers', queue), now + ttl, worker)
    redis.call('ZREM', key('idle', queue), worker)
  end
  for _, queue in ipairs(queues) do
    local listed = redis.call('LINDEX', 'rq:queue:' .. queue, 0)
    local turn = false
    if not listed or (not is_ours(listed) and times_of(queue).plain ~= 1) then turn = first(queue, 1) end
    if turn then
      note(queue, 'plain', 1)
      return turn
    end
    if listed then
      note(queue, 'plain', 0)
      return {queue}
    end
  end
  local soonest = math.huge
  for _, queue in ipairs(queues) do
    if waits == '1' then redis.call('ZADD', key('idle', queue), now + ttl, worker) end
    local due = redis.call('ZRANGE', key('wake', queue), 0, 0, 'WITHSCORES')
    if due[1] then soonest = math.min(soonest, tonumber(due[2]) - now) end
  end
  if soonest < math.huge then return {'', string.format('%.6f', math.max(0, soonest))} end
  return false
end

-- The worker is there, and runs a job.
function operations.here(worker, ttl)
  for _, queue in ipairs(rest(2)) do redis.call('ZADD', key('workers', queue), now + ttl, worker) end
end

-- The worker is there for these queues no more, or has something to do.
function operations.leave(worker, is_over)
  for _, queue in ipairs(rest(2)) do
    redis.call('ZREM', key('idle', queue), worker)
    if is_over == '1' then redis.call('ZREM', key('workers', queue), worker) end
  end
end

-- The tenant had so many fewer jobs than it was charged for. It leaves the order, unless it was offered since.
function operations.drop(queue, tenant, unused, offers, parked, wait)
  local record = read(queue, tenant)
  finish(record, tonumber(unused), unused * charge_of(record), now)
  if record.offers == tonumber(offers) then
    exit(record, tonumber(parked))
    if tonumber(wait) >= 0 then redis.call('ZADD', key('wake', queue), now + wait, tenant) end
  elseif place_of(record) then
    stay(record)
  end
  write(record)
end

-- The turn came to nothing, and the tenant keeps its place.
function operations.undo(queue, tenant, unused)
  local record = read(queue, tenant)
  finish(record, tonumber(unused), unused * charge_of(record), now)
  if place_of(record) then stay(record) end
  write(record)
end

local function charge(record, jobs, seconds)
  record.jobs, record.begun = jobs, jobs * now - seconds
  record.ahead = jobs == 0 and 0 or math.max(jobs * charge_of(record), seconds / record.share)
  place_again(record)
  write(record)
end

-- What is under way is charged for as long as it has run, at least the mean: tenant, its jobs, and their seconds in turn.
function operations.charge(queue)
  local given, least = rest(1), math.huge
  local busy = key('busy', queue)
  local before = redis.call('SMEMBERS', busy)
  redis.call('DEL', busy)
  for at = 1, #given, 3 do
    local record = read(queue, given[at])
    charge(record, tonumber(given[at + 1]), tonumber(given[at + 2]))
    redis.call('SADD', busy, given[at])
    least = math.min(least, measured(record))
  end
  for _, tenant in ipairs(before) do
    if redis.call('SISMEMBER', busy, tenant) == 0 then charge(read(queue, tenant), 0, 0) end
  end
  -- Where nobody waits, what runs is nobody's debt.
  if redis.call('ZCARD', key('order', queue)) == 0 and least < math.huge then
    note(queue, 'virtual', math.max(times_of(queue).virtual, least))
  end
  note(queue, 'swept', now)
  note(queue, 'most', 0)
  redis.call('ZREMRANGEBYSCORE', key('workers', queue), '-inf', now - 60)
  redis.call('ZREMRANGEBYSCORE', key('idle', queue), '-inf', now - 60)
  room(queue)
end

-- Pushed jobs at the end of a list with plain RQ jobs go where two of these stand together, one between each two of them.
function operations.bring(queue)
  local list, rq_ids, at, nth = 'rq:queue:' .. queue, rest(1), 0, 1
  local pushed, before = {}, nil
  for _, rq_id in ipairs(rq_ids) do pushed[rq_id] = true end
  repeat
    local some = redis.call('LRANGE', list, at, at + LOOK - 1)
    at = at + #some
    for _, listed in ipairs(some) do
      if pushed[listed] or not rq_ids[nth] then return end
      local plain = not is_ours(listed) and listed
      while plain and before and rq_ids[nth] do
        local is_there = redis.call('LREM', list, -1, rq_ids[nth]) == 1
        if is_there then
          redis.call('LINSERT', list, 'AFTER', before, rq_ids[nth])
          at, before = at + 1, nil
        end
        nth = nth + 1
      end
      before = plain
    end
  until #some < LOOK
end

local answer = operations[ARGV[1]](unpack(ARGV, 2, 7))
keep_all()
return answer
