-- The order of tenants in one Redis; what it means is said in fair_order.py.
-- ARGV: the operation, what the function of that name takes, and then often a list of any length: `rest`.

local K = 1          -- jobs that wait in RQ's list beyond the workers that are known to be idle
local UNKNOWN = 1    -- seconds that a job is charged of which nobody knows how long it takes
local STEP = 1e-6    -- seconds between tenants that come in at the same virtual time, so that the first one stays first
local NEWEST = 0.2   -- weight of a job's run time in the mean of its tenant
local LOOK = 100     -- jobs of RQ's list that are read at a time
local FIELDS = 1000  -- names and values that are read or written at a time
local DUE = 100      -- tenants that come back at a time, of those that may start a job again

local NUDGE = 'tenant_slots-look' -- in RQ's list, in place of a job: whoever waits there is to look again. No job has this id
local AT_ONCE = 0.02 -- seconds by which who looks again may be late
local NOTICED = 1    -- seconds by which a queue's virtual time is put right
local OUTDATED = 60  -- seconds by which a worker's word that it is there has to be wrong before a sweep forgets it
local TO_PUSH = 1    -- seconds for which a turn keeps its place in the window, while its jobs are admitted and pushed

local FRONT = -1e15   -- score of tenants that come with nothing to their account, the first one first
local BEHIND = 1e15   -- of those whose turn comes to nothing while nobody listens there
local IN_LANE = 2e15  -- and of those that have another queue of their own

local RECORD = '<ddddddfHHIHBIIII'
local NOTHING_YET = {0, 0, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
local LONGER = {1, 30, 900} -- seconds: of the runs of each length between these the last one is known that was charged

-- What `parked` says besides 0 and 1: it left because none of its jobs may start, whichever it is, so that one more of
-- them changes nothing.
local SHUT = 2

local TIMES = '<ddddddHBdBB'
local TIMES_BYTES = 61 -- what an older version has left there is forgotten, as all of this may be
local GIVEN = '<dHc8'  -- follows these, of each feeder that has been given a turn
local GIVEN_BYTES = 18

local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000

local function key(name, queue) return 'tenant_slots:' .. name .. ':' .. queue end

-- What is known of tenants and queues, a field each: a tenant's has a record for each queue that it has been in.
local KNOWN = 'tenant_slots:known'

local function field_of(queue) return ':' .. queue end

local raws = {}

-- Read these fields together.
local function fetch(fields)
  for at, raw in ipairs(redis.call('HMGET', KNOWN, unpack(fields))) do raws[fields[at]] = raw or '' end
end

local function raw_of(field)
  if not raws[field] then raws[field] = redis.call('HGET', KNOWN, field) or '' end
  return raws[field]
end

-- done: virtual seconds of ended jobs. ahead: what those under way are charged. begun: the sum of their starts; jobs: how
-- many. mean: seconds a job takes, negative if not known. share: 0 if not known. left: measured virtual time when it left
-- the order, left_at: then. offers: counts them. frees: counts when it could do more, as by a free slot. parked: it left
-- because it was full. offset: what counts by another share of what those under way have taken, see `change_share`. charged:
-- the marks of what was charged last, by its length; 0 for none.
local function new_record(queue, tenant, values)
  local r = {queue = queue, tenant = tenant}
  r.done, r.ahead, r.begun, r.left, r.left_at, r.offset, r.mean, r.jobs, r.share, r.offers, r.frees, r.parked =
    unpack(values)
  r.charged = {unpack(values, 13)}
  r.had_jobs = r.jobs > 0
  return r
end

local tenants = {}

-- Neither infinite nor beyond what a score is compared with, nor what is no number at all: Redis would refuse it as a score.
local function is_sound(values)
  for _, value in ipairs(values) do
    if not (math.abs(value) < BEHIND) then return false end
  end
  return true
end

local function unpacked(tenant, raw)
  local records, at = {}, 1
  while at <= #raw do
    local queue, values
    queue, at = struct.unpack('<Hc0', raw, at)
    values = {struct.unpack(RECORD, raw, at)}
    at = table.remove(values)
    if is_sound(values) then records[queue] = new_record(queue, tenant, values) end
  end
  return records
end

-- All records of a tenant, by queue. What an older version has left there does not end where they do, and is forgotten, as
-- is what somebody else has written there.
local function records_of(tenant)
  if not tenants[tenant] then
    local is_whole, records = pcall(unpacked, tenant, raw_of(tenant))
    tenants[tenant] = is_whole and records or {}
  end
  return tenants[tenant]
end

local times_of

-- Of whom nothing is known stands where the queue is: it may have a place there, by what Redis has lost or forgotten since.
local function read(queue, tenant)
  local records = records_of(tenant)
  if not records[queue] then
    local _, other = next(records)
    records[queue] = new_record(queue, tenant, NOTHING_YET)
    records[queue].done = times_of(queue).virtual
    if other then records[queue].share = other.share end
  end
  return records[queue]
end

local function write(r) r.changed = true end

local function packed(r)
  local values = struct.pack(
    RECORD, r.done, r.ahead, r.begun, r.left, r.left_at, r.offset, r.mean, r.jobs, r.share, r.offers, r.frees,
    r.parked, unpack(r.charged)
  )
  return struct.pack('<Hc0', #r.queue, r.queue) .. values
end

local function packed_together(records)
  local raw = ''
  for _, record in pairs(records) do raw = raw .. packed(record) end
  return raw
end

-- virtual: the queue's virtual time. sure: as much of it as tenants stood at whose jobs had ended. newcomers: counts them.
-- mean: of all jobs, negative if not known. swept: when the sweep charged what runs. believed: until when what ran by then
-- counts as running; 0: always. most: workers that were seen lately.
-- plain: it is a tenant's turn before plain RQ jobs. wakes: when the first of those may start a job that may not now; 0 if
-- there is none. behind: some tenants stand behind all others. brought: plain RQ jobs have been pushed as tenants' jobs.
-- given: by feeder, the jobs of its turn that are still to be pushed, and until when they have a place in the window.
local read_times = {}

-- Without what is over by now. Nor does a clock that is set back keep a place for longer.
local function given_in(raw)
  local given = {}
  for at = TIMES_BYTES + 1, #raw, GIVEN_BYTES do
    local ends, jobs, feeder = struct.unpack(GIVEN, raw, at)
    if now < ends and ends <= now + TO_PUSH then given[feeder] = {jobs = jobs, ends = ends} end
  end
  return given
end

-- The first one that stands in the order by its time is at the queue's virtual time, as far as one knows without it.
local function virtual_of_order(queue)
  local below = '(' .. string.format('%.17g', BEHIND)
  local first = redis.call('ZRANGEBYSCORE', key('order', queue), 0, below, 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(first[2] or 0)
end

function times_of(queue)
  local t = read_times[queue]
  if not t then
    t = {virtual = 0, sure = 0, newcomers = 0, mean = -1, swept = 0, believed = 0, most = 0, plain = 0, wakes = 0}
    t.behind, t.brought, t.given = 0, 0, {}
    local raw = raw_of(field_of(queue))
    local is_whole = #raw >= TIMES_BYTES and (#raw - TIMES_BYTES) % GIVEN_BYTES == 0
    local values = is_whole and {struct.unpack(TIMES, raw)}
    if values and is_sound(values) then
      t.virtual, t.sure, t.newcomers, t.mean, t.swept, t.believed, t.most, t.plain, t.wakes, t.behind, t.brought =
        unpack(values)
      t.given = given_in(raw)
    else
      t.virtual = virtual_of_order(queue)
      t.behind = 1 -- as far as one knows
    end
    read_times[queue] = t
  end
  return t
end

local function note(queue, name, value)
  local t = times_of(queue)
  if t[name] == value then return end
  t[name], t.changed = value, true
end

local function packed_times(t)
  local most = math.min(65535, t.most)
  local raw = struct.pack(
    TIMES, t.virtual, t.sure, t.newcomers, t.mean, t.swept, t.believed, most, t.plain, t.wakes, t.behind, t.brought
  )
  for feeder, turn in pairs(t.given) do raw = raw .. struct.pack(GIVEN, turn.ends, math.min(65535, turn.jobs), feeder) end
  return raw
end

-- Who has jobs under way is in a set, which the sweep compares with what it finds.
local function keep_busy(record)
  if record.jobs > 0 and not record.had_jobs then redis.call('SADD', key('busy', record.queue), record.tenant) end
  if record.jobs == 0 and record.had_jobs then redis.call('SREM', key('busy', record.queue), record.tenant) end
end

local function keep_all()
  local fields = {}
  for queue, t in pairs(read_times) do
    if t.changed then
      fields[#fields + 1] = field_of(queue)
      fields[#fields + 1] = packed_times(t)
    end
  end
  for tenant, records in pairs(tenants) do
    local changed = false
    for _, record in pairs(records) do
      if record.changed then
        changed = true
        keep_busy(record)
      end
    end
    if changed then
      fields[#fields + 1] = tenant
      fields[#fields + 1] = packed_together(records)
    end
    if #fields >= FIELDS then
      redis.call('HSET', KNOWN, unpack(fields))
      fields = {}
    end
  end
  if #fields > 0 then redis.call('HSET', KNOWN, unpack(fields)) end
end

-- What it is charged, with what is expected of the jobs under way.
local function account(record) return record.done + record.offset + record.ahead end

-- Below zero are those in front, see FRONT.
local function score_of(record) return string.format('%.17g', math.max(0, account(record))) end

local function share_of(record) return math.max(1, record.share) end

-- Of time that workers have spent on a tenant, what counts.
local function by_share(record, seconds) return seconds / share_of(record) end

-- Whoever brings a share along has read it a while ago: what a change has told since is newer.
local function learn_share(record, share)
  if record.share == 0 then record.share = share end
end

local function charge_of(record)
  local seconds = record.mean
  if seconds < 0 then seconds = times_of(record.queue).mean end
  if seconds < 0 then seconds = UNKNOWN end
  return by_share(record, seconds)
end

-- Nobody has said for a while what runs: ends may not be told, as in an outage, or the clock of Redis was put forward.
local function last_moment(queue)
  local believed = times_of(queue).believed
  return believed > 0 and math.min(now, believed) or now
end

-- Seconds that the jobs under way have taken together.
local function taken(record) return math.max(0, record.jobs * last_moment(record.queue) - record.begun) end

-- Its virtual time without what is only expected of the jobs under way.
local function measured(record) return record.done + record.offset + by_share(record, taken(record)) end

local function begin(record, jobs)
  record.ahead = record.ahead + jobs * charge_of(record)
  record.begun = record.begun + jobs * now
  record.jobs = math.min(65535, record.jobs + jobs)
end

-- So many jobs are under way no more, which were charged this much together and began at that moment.
local function finish(record, jobs, charged, moment)
  record.jobs = math.max(0, record.jobs - jobs)
  record.ahead = math.max(0, record.ahead - charged)
  record.begun = math.max(0, record.begun - jobs * moment)
  if record.jobs == 0 then record.ahead, record.begun, record.offset = 0, 0, 0 end
end

local function place_of(record) return redis.call('ZSCORE', key('order', record.queue), record.tenant) end

local function place(record) redis.call('ZADD', key('order', record.queue), score_of(record), record.tenant) end

-- It has nothing under way, and is not ahead of the queue.
local function has_nothing_on_account(record)
  return record.jobs == 0 and account(record) <= times_of(record.queue).virtual
end

-- What it is charged has changed. Who stands in front stays there only with nothing to its account, and had nothing under way.
-- Returns whether it surely has a place.
local function place_again(record)
  if not record.had_jobs and tonumber(place_of(record) or 0) < 0 and has_nothing_on_account(record) then return true end
  return redis.call('ZADD', key('order', record.queue), 'XX', 'CH', score_of(record), record.tenant) == 1
end

-- Its time counts by another share from now on. Their ends will divide all that the jobs under way take by this one; what they
-- have taken until now counts by the one before: the offset makes up for that, until they have ended.
local function change_share(record, share)
  if record.share == share then return end
  local old, before = share_of(record), measured(record)
  local was_known = record.share > 0
  record.share = share
  if was_known and record.jobs > 0 then
    record.offset = before - record.done - by_share(record, taken(record))
    record.ahead = math.max(record.ahead * old / share, by_share(record, taken(record)))
    place_again(record)
  end
end

-- The most workers that were seen lately; nobody knows: as many as you like.
local function workers_seen(queue)
  local most = times_of(queue).most
  return most > 0 and most or math.huge
end

-- Who comes back has no credit for the time that it was away. Of its debt it is forgiven what the workers can have done
-- meanwhile, and no more: a tenant that was full for a moment has not lost what it is owed.
local function come_back(record, virtual)
  local start = virtual
  if record.left_at > 0 and record.left_at <= now then -- else the clock was set back, and nobody knows for how long
    local seconds = now - record.left_at
    start = math.min(virtual, record.left + workers_seen(record.queue) * seconds)
  end
  record.done = math.max(record.done, start - record.offset - record.ahead)
end

-- It comes with nothing to its account.
local function is_newcomer(record, virtual)
  return record.parked == 0 and record.jobs == 0 and account(record) <= virtual
end

local function enter(record)
  if place_of(record) then return end
  local virtual = times_of(record.queue).virtual + STEP
  note(record.queue, 'virtual', virtual)
  come_back(record, virtual)
  if is_newcomer(record, virtual) then
    local newcomer = times_of(record.queue).newcomers + 1
    note(record.queue, 'newcomers', newcomer)
    redis.call('ZADD', key('order', record.queue), string.format('%.17g', FRONT + newcomer), record.tenant)
  else
    place(record)
  end
end

-- What it is offered from now on is not forgotten by who has looked before.
local function count_offer(record)
  record.offers = (record.offers + 1) % 2 ^ 32
  write(record)
end

-- It may have something to run.
local function offered(record, has_place)
  count_offer(record)
  if not has_place then enter(record) end
  record.parked = 0
end

-- It may do more than before. Who has had a turn by then may have seen that it was full, and is about to say so.
local function count_free(record)
  record.frees = (record.frees + 1) % 2 ^ 16
  write(record)
end

-- Its turn came to nothing. Who came with nothing to its account is first again.
local function stay(record)
  if has_nothing_on_account(record) then
    redis.call('ZADD', key('order', record.queue), string.format('%.17g', FRONT), record.tenant)
  else
    place(record)
  end
end

-- Who stands behind others, up to this score, has a turn again.
local function come_forward(queue, most)
  if times_of(queue).behind == 0 then return end
  local tenants = redis.call('ZRANGEBYSCORE', key('order', queue), BEHIND, most, 'LIMIT', 0, FIELDS)
  if #tenants < FIELDS and most == IN_LANE then note(queue, 'behind', 0) end
  if #tenants > 0 then fetch(tenants) end
  for _, tenant in ipairs(tenants) do stay(read(queue, tenant)) end
end

-- Those of these workers that have not said that they are ours.
local function not_ours(queue, workers)
  local others = {}
  for start = 1, #workers, FIELDS do
    local some = {unpack(workers, start, math.min(#workers, start + FIELDS - 1))}
    for at, score in ipairs(redis.call('ZMSCORE', key('workers', queue), unpack(some))) do
      if not score then others[#others + 1] = some[at] end
    end
  end
  return others
end

-- How many workers have a record of RQ's there and are not ours, and how many of these are idle. One of ours that begins or
-- ends may have said so only to RQ: its record says whose it is.
local function stock_workers(queue)
  local others, idle = 0, 0
  for _, worker in ipairs(not_ours(queue, redis.call('SMEMBERS', 'rq:workers:' .. queue))) do
    local state, class = unpack(redis.call('HMGET', worker, 'state', 'tenant_slots_class'))
    if state and not class then
      others = others + 1
      if state == 'idle' then idle = idle + 1 end
    end
  end
  return others, idle
end

-- Whether somebody who waits at RQ's lists will look when a tenant may start a job again.
local function is_watched(queue)
  local latest = math.max(now, times_of(queue).wakes) + AT_ONCE
  return redis.call('ZCOUNT', key('watch', queue), now - AT_ONCE, latest) > 0
end

local function somebody_waits(queue) return redis.call('ZCOUNT', key('idle', queue), now, '+inf') > 0 end

-- Who waits at RQ's list is woken. Not where a worker of RQ's waits too: that would pass over what is no job and begin its
-- wait anew, without the heartbeat that comes at its end.
local function wake_somebody(queue)
  local list = 'rq:queue:' .. queue
  if redis.call('LINDEX', list, 0) == NUDGE then return end
  local _, idle = stock_workers(queue)
  if idle == 0 then redis.call('LPUSH', list, NUDGE) end
end

-- Somebody is to look when a tenant may start a job again. Who waits at RQ's list knows only of those that had left by
-- then: unless one of them looks in time it is woken, to find out.
local function have_somebody_watch(queue)
  if times_of(queue).wakes == 0 or not somebody_waits(queue) or is_watched(queue) then return end
  wake_somebody(queue)
end

local function wakes_at(queue)
  local due = redis.call('ZRANGE', key('wake', queue), 0, 0, 'WITHSCORES')
  note(queue, 'wakes', tonumber(due[2] or 0))
  have_somebody_watch(queue)
end

local function is_due(queue)
  local wakes = times_of(queue).wakes
  return wakes > 0 and wakes <= now
end

local woken = {}

-- Tenants that may start a job again by now, which they might not when they left. Not all of those whose time has come at
-- once: the others come with the next turns.
local function wake(queue)
  if not is_due(queue) then return end
  woken[queue] = true
  local tenants = redis.call('ZRANGEBYSCORE', key('wake', queue), '-inf', now, 'LIMIT', 0, DUE)
  if #tenants > 0 then
    redis.call('ZREM', key('wake', queue), unpack(tenants))
    fetch(tenants)
  end
  for _, tenant in ipairs(tenants) do
    local record = read(queue, tenant)
    count_free(record)
    offered(record)
  end
  wakes_at(queue)
end

local function exit(record, parked)
  record.left, record.left_at, record.parked = measured(record), now, parked
  redis.call('ZREM', key('order', record.queue), record.tenant)
end

local function is_ours(rq_id) return string.find(rq_id, '^%x+%-%x+%-%x+%-%x+%-%x+%-%d+$') ~= nil end

-- Jobs that RQ's list is about to get.
local function to_push(queue)
  local jobs = 0
  for _, turn in pairs(times_of(queue).given) do jobs = jobs + turn.jobs end
  return jobs
end

-- So many jobs of the turn that a feeder was given are still to be pushed. If it is over by now that changes nothing.
local function has_to_push(queue, feeder, jobs)
  local t = times_of(queue)
  local turn = t.given[feeder]
  if not turn or turn.jobs == jobs then return end
  turn.jobs, t.changed = jobs, true
  if jobs == 0 then t.given[feeder] = nil end
end

-- Plain RQ jobs that were pushed as jobs of tenants, by id: their ids do not tell.
local function brought_in(queue)
  local found = {}
  if times_of(queue).brought == 1 then
    for _, rq_id in ipairs(redis.call('SMEMBERS', key('brought', queue))) do found[rq_id] = true end
  end
  return found
end

-- How many tenants' jobs are at the head of RQ's list, behind so many plain ones that somebody has put before them.
local function admitted_in(queue, most)
  local there, brought = 0, brought_in(queue)
  for _, rq_id in ipairs(redis.call('LRANGE', 'rq:queue:' .. queue, 0, 2 * most + LOOK)) do
    if is_ours(rq_id) or brought[rq_id] then there = there + 1 end
  end
  return there
end

-- How many jobs RQ's list may have ahead, how many workers are there, and how many of these idle. Workers of ours take
-- their next job themselves; any other needs one ahead.
local function window(queue)
  local alive = redis.call('ZCOUNT', key('workers', queue), now, '+inf')
  local idle = redis.call('ZCOUNT', key('idle', queue), now, '+inf')
  local others, idle_others = stock_workers(queue)
  idle = idle + idle_others
  if alive + others > times_of(queue).most then note(queue, 'most', alive + others) end
  local ahead = (others > 0 or alive == 0) and K or 0
  return idle + ahead, alive + others, idle
end

-- How many more jobs it may take, and whether nobody listens there. Turns count from when they are given: of many that ask
-- before anybody pushes, each would find the same room.
local function room(queue)
  local most, workers = window(queue)
  local there = most > 0 and admitted_in(queue, most) or 0
  return most - there - to_push(queue), workers == 0
end

-- A tenant has its turn, with so many jobs, and is charged for these.
local function turn_of(record, jobs)
  note(record.queue, 'virtual', math.max(times_of(record.queue).virtual, measured(record)))
  note(record.queue, 'sure', math.max(times_of(record.queue).sure, record.done))
  begin(record, jobs)
  write(record)
end

-- What a worker is told: 1 where the tenant would be next again, as things are now; 1 where it has no place in the order.
local function told(record, jobs, stays, is_out)
  return {record.queue, record.tenant, jobs, record.offers, record.frees, stays and 1 or 0, is_out and 1 or 0}
end

local DIGITS = 19 -- of the largest primary key
local MANY = 10   -- times a thousand of those who are none

local function is_tenant(member) return #member <= DIGITS and string.find(member, '^[1-9]%d*$') ~= nil end

-- The first two tenants. Before them nobody stands who is none: what a job or another program has put there leaves, many at a
-- time, and the rest with the next questions.
local function first_two(queue)
  for _ = 1, MANY do
    local heads = redis.call('ZRANGE', key('order', queue), 0, 1, 'WITHSCORES')
    if not heads[1] or is_tenant(heads[1]) then return heads end
    local strangers = {}
    for _, member in ipairs(redis.call('ZRANGE', key('order', queue), 0, FIELDS - 1)) do
      if not is_tenant(member) then strangers[#strangers + 1] = member end
    end
    redis.call('ZREM', key('order', queue), unpack(strangers))
  end
  return {}
end

-- The first tenant and how many jobs it may have now: all, while nobody else wants them.
local function first(queue, most, for_nobody)
  wake(queue)
  if not for_nobody then come_forward(queue, IN_LANE) end
  local heads = first_two(queue)
  if not heads[1] or (for_nobody and tonumber(heads[2]) >= BEHIND) then return false end
  local record = read(queue, heads[1])
  local jobs = heads[3] and 1 or most
  turn_of(record, jobs)
  place(record)
  return told(record, jobs, not heads[3] or account(record) <= tonumber(heads[4]), false)
end

-- What waits in RQ's list goes before tenants where it is one of their jobs, and else by turns with them.
local function listed_first(queue)
  local listed = redis.call('LINDEX', 'rq:queue:' .. queue, 0)
  return listed, listed and (is_ours(listed) or times_of(queue).plain == 1)
end

-- Whether a job waits in RQ's list.
local function has_job_listed(queue)
  for _, listed in ipairs(redis.call('LRANGE', 'rq:queue:' .. queue, 0, 1)) do
    if listed ~= NUDGE then return true end
  end
  return false
end

-- Whether what is to be charged was charged before: a client whose answer was lost says the same again. What others say
-- meanwhile of longer or shorter runs does not hide it.
local function is_said_again(record, seconds, mark)
  local length = 1
  while LONGER[length] and seconds >= LONGER[length] do length = length + 1 end
  local known = record.charged[length] == mark
  record.charged[length] = mark
  return known
end

local function settle(queue, tenant, seconds, mark)
  local record = read(queue, tenant)
  if is_said_again(record, seconds, mark) then return false end
  local charged = charge_of(record)
  local swept = times_of(queue).swept
  if seconds > now - swept then charged = math.max(charged, by_share(record, seconds - (now - swept))) end
  local offset = record.offset / math.max(1, record.jobs)
  finish(record, 1, charged, now - math.max(0, seconds)) -- one that has not run was admitted lately
  if seconds >= 0 then
    record.done = record.done + offset + by_share(record, seconds)
    if record.jobs > 0 then record.offset = record.offset - offset end
    note(queue, 'sure', math.max(times_of(queue).sure, math.min(times_of(queue).virtual, record.done)))
    local mean = times_of(queue).mean
    note(queue, 'mean', mean < 0 and seconds or mean + NEWEST * (seconds - mean))
    record.mean = record.mean < 0 and seconds or record.mean + NEWEST * (seconds - record.mean)
  end
  write(record)
  return place_again(record)
end

local NOTHING_CHARGED = -2   -- in place of seconds, as in fair_order.py

local operations = {}

-- What follows so many named arguments. A table, because a call may have no more than some thousand arguments.
local function rest(named)
  local list = {}
  for at = named + 2, #ARGV do list[#list + 1] = ARGV[at] end
  return list
end

-- Each of these tenants has one job more. tenant and share in turn; a share of 0 is not known.
function operations.offer(queue)
  local given = rest(1)
  for at = 1, #given, 2 do
    local record = read(queue, given[at])
    learn_share(record, tonumber(given[at + 1]))
    if record.parked == SHUT then
      count_offer(record)
    else
      offered(record)
    end
  end
  return room(queue)
end

-- These tenants have been changed: tenant and share in turn, of those that are known here. None is shut any more; who has
-- something to run is offered besides.
function operations.share()
  local given = rest(0)
  for at = 1, #given, 2 do
    for _, record in pairs(records_of(given[at])) do
      change_share(record, tonumber(given[at + 1]))
      if record.parked == SHUT then record.parked = 1 end
      count_free(record)
    end
  end
end

-- Tenant and share in turn. Returns those of them whose time is divided by another share here: tenant and that share, which
-- may be unknown, in turn.
function operations.other_shares()
  local given, tenants, others = rest(0), {}, {}
  for at = 1, #given, 2 do tenants[#tenants + 1] = given[at] end
  fetch(tenants)
  for at = 1, #given, 2 do
    for _, record in pairs(records_of(given[at])) do
      if share_of(record) ~= tonumber(given[at + 1]) then
        others[#others + 1], others[#others + 2] = given[at], record.share
        break
      end
    end
  end
  return others
end

-- Tenant, the share that was known, and the right one in turn. Where another one has been told since, that is newer.
function operations.correct_shares()
  local given = rest(0)
  for at = 1, #given, 3 do
    for _, record in pairs(records_of(given[at])) do
      if record.share == tonumber(given[at + 1]) then
        change_share(record, tonumber(given[at + 2]))
        write(record)
      end
    end
  end
end

-- Nothing waited when it left, and it has not been offered since.
local function has_nothing(record) return record.left_at > 0 and record.parked == 0 and not place_of(record) end

-- A tenant has room again: it is offered in those queues besides this one where it was full before. Returns these.
local function make_free_elsewhere(tenant, queue)
  local others = {}
  for lane, record in pairs(records_of(tenant)) do
    if lane ~= queue then
      count_free(record)
      if record.parked > 0 then
        offered(record)
        others[#others + 1] = lane
      end
    end
  end
  return others
end

-- The same, and it is offered in this queue too.
-- In this queue it may have nothing to run, unless the job itself runs again.
local function make_free(tenant, seconds, mark, queue, is_over)
  local has_place = false
  if seconds ~= NOTHING_CHARGED then has_place = settle(queue, tenant, seconds, mark) end
  local own = read(queue, tenant)
  count_free(own)
  if has_place or is_over ~= '1' or not has_nothing(own) then offered(own, has_place) end
  return make_free_elsewhere(tenant, queue)
end

local function with_room(queues)
  local rooms = {}
  for _, queue in ipairs(queues) do
    if room(queue) > 0 then rooms[#rooms + 1] = queue end
  end
  return rooms
end

-- Returns the queues with room.
function operations.freed(tenant, seconds, mark, queue, is_over)
  return with_room({queue, unpack(make_free(tenant, tonumber(seconds), tonumber(mark), queue, is_over))})
end

-- Its slot was handed on in this queue, and what else it had taken is free. Returns the other queues with room.
function operations.freed_elsewhere(tenant, queue)
  return with_room(make_free_elsewhere(tenant, queue))
end

-- Each of these tenants may do more than before: tenant and share in turn. Returns the queues with room.
function operations.changed(queue)
  local given, names, lanes = rest(1), {queue}, {}
  for at = 1, #given, 2 do
    learn_share(read(queue, given[at]), tonumber(given[at + 1]))
    for _, lane in ipairs(make_free(given[at], NOTHING_CHARGED, 0, queue, '')) do
      if not lanes[lane] then
        lanes[lane], names[#names + 1] = true, lane
      end
    end
  end
  return with_room(names)
end

-- The next tenant to be admitted into RQ's list, if there is room. Whatever came of the feeder's last turn, that is over.
function operations.next(queue, feeder)
  has_to_push(queue, feeder, 0)
  local free, for_nobody = room(queue)
  if free <= 0 then return false end
  local turn = first(queue, free, for_nobody)
  if not turn then return false end
  local t = times_of(queue)
  if feeder ~= '' then t.given[feeder], t.changed = {jobs = turn[3], ends = now + TO_PUSH}, true end
  if for_nobody then turn[#turn + 1] = 1 end
  return turn
end

local function show_presence(worker, ttl, queues)
  for _, queue in ipairs(queues) do redis.call('ZADD', key('workers', queue), now + ttl, worker) end
end

-- Whether a worker that waits has to know when a tenant may start a job: not where another one looks then, who has somebody
-- told if it turns to something else. Nobody is told where RQ's own workers may wait: there all of ours know.
local function has_to_watch(queue)
  return times_of(queue).wakes > 0 and (not is_watched(queue) or stock_workers(queue) > 0)
end

-- The worker waits at RQ's lists; returns the seconds until a tenant may start a job that it may not now, if it is to look.
local function wait(worker, ttl, waits, queues)
  local soonest, looks = math.huge, waits ~= '1'
  for _, queue in ipairs(queues) do
    redis.call('ZREM', key('watch', queue), worker)
    if waits == '1' then redis.call('ZADD', key('idle', queue), now + ttl, worker) end
    local wakes = times_of(queue).wakes
    if wakes > 0 then soonest = math.min(soonest, math.max(0, wakes - now)) end
    looks = looks or has_to_watch(queue)
  end
  if not looks or soonest == math.huge then return false end
  if waits == '1' then
    for _, queue in ipairs(queues) do redis.call('ZADD', key('watch', queue), now + soonest, worker) end
  end
  return {'', string.format('%.6f', soonest)}
end

-- What a worker of ours is to do: run a tenant's next job, take one from RQ's list, or wait at that list.
local function next_for(worker, ttl, waits, queues)
  for _, queue in ipairs(queues) do
    local listed, goes_first = listed_first(queue)
    local turn = not goes_first and first(queue, 1)
    if turn then
      note(queue, 'plain', 1)
      return turn
    end
    if listed then
      note(queue, 'plain', 0)
      return {queue}
    end
  end
  return wait(worker, ttl, waits, queues)
end

-- Whether somebody else is to run what the tenant of a free slot has waiting, as the worker that has freed it does not.
local function is_for_others(told, tenant, queue)
  if not told or told[1] == '' then return false end
  if told[1] ~= queue then return true end
  return told[2] ~= tenant and redis.call('ZCARD', key('idle', queue)) > 0
end

-- A ttl where the worker has to say again that it is there; a tenant whose slot it has just freed, or none.
-- Returns what to do, and the queues besides in which there is room for that tenant.
function operations.take(worker, ttl, says, waits, tenant, seconds, mark, queue, is_over)
  local queues, others = rest(9), {}
  if tenant ~= '' then
    fetch({tenant, field_of(queue)})
    others = make_free(tenant, tonumber(seconds), tonumber(mark), queue, is_over)
  end
  if says == '1' then show_presence(worker, ttl, queues) end
  local told = next_for(worker, ttl, waits, queues)
  if tenant ~= '' and not woken[queue] and is_for_others(told, tenant, queue) then others[#others + 1] = queue end
  for lane in pairs(woken) do others[#others + 1] = lane end
  if says == '1' and told and told[1] ~= '' then
    for _, lane in ipairs(queues) do have_somebody_watch(lane) end
  end
  return {told, with_room(others)}
end

-- Whether the tenant has jobs in another queue that wait for one of its slots.
local function is_full_elsewhere(record)
  for lane, other in pairs(records_of(record.tenant)) do
    if lane ~= record.queue and other.parked > 0 then return true end
  end
  return false
end

-- A job has ended whose slot has not been freed yet. Is its tenant the next one again? Then it has its turn, without
-- a change of its place where it has none. Otherwise the job is settled, and its tenant offered once the slot is free.
function operations.again(tenant, seconds, mark, queue)
  fetch({tenant, field_of(queue)})
  local record = read(queue, tenant)
  local has_place = settle(queue, tenant, tonumber(seconds), tonumber(mark))
  if has_job_listed(queue) or is_due(queue) or is_full_elsewhere(record) then return false end
  local heads = redis.call('ZRANGE', key('order', queue), 0, 1, 'WITHSCORES')
  has_place = has_place or heads[1] == tenant or heads[3] == tenant or place_of(record)
  if not has_place then come_back(record, times_of(queue).virtual) end
  local at = heads[1] == tenant and 3 or 1
  local other = tonumber(heads[at + 1] or math.huge)
  if account(record) > other then return false end
  turn_of(record, 1)
  if has_place then place(record) else record.left, record.left_at = measured(record), now end
  return told(record, 1, account(record) <= other, not has_place)
end

-- Whether the tenant, which has come back and has no place in the order, would stand before this first one.
local function comes_before(record, score)
  if is_newcomer(record, times_of(record.queue).virtual) then return score >= 0 end
  return account(record) <= score
end

-- A worker has taken a plain job of the tenant from RQ's list. Is it its turn, or is nobody kept waiting? Then it is charged;
-- one that does not wait is in any case. Where others of its tenant wait their turn is for the first of these. Whoever goes
-- before others does not move the clock.
function operations.begin(queue, tenant, share, waits)
  local record = read(queue, tenant)
  learn_share(record, tonumber(share))
  wake(queue)
  local has_place = place_of(record)
  if not has_place then come_back(record, times_of(queue).virtual) end
  local heads = redis.call('ZRANGE', key('order', queue), 0, 0, 'WITHSCORES')
  if not has_place and (not heads[1] or comes_before(record, tonumber(heads[2]))) then
    turn_of(record, 1)
  elseif waits == '0' or (not has_place and somebody_waits(queue)) then
    begin(record, 1)
    write(record)
  else
    return false
  end
  if has_place then place(record) else record.left, record.left_at = measured(record), now end
  return told(record, 1, false, not has_place)
end

-- The worker is there, and runs a job.
function operations.here(worker, ttl) show_presence(worker, ttl, rest(2)) end

-- The worker is there for these queues no more, or has something to do, or looks again.
function operations.leave(worker, is_over, looks)
  for _, queue in ipairs(rest(3)) do
    redis.call('ZREM', key('idle', queue), worker)
    redis.call('ZREM', key('watch', queue), worker)
    if is_over == '1' then redis.call('ZREM', key('workers', queue), worker) end
    if looks == '0' then have_somebody_watch(queue) end
  end
end

-- The tenant had so many fewer jobs than it was charged for. It leaves the order, unless it was offered since, by whoever
-- can have changed what was found. Returns whether there is room for it: who has freed a slot of it elsewhere has told nobody.
function operations.drop(queue, tenant, unused, offers, frees, parked, wait, feeder, admitted)
  has_to_push(queue, feeder, tonumber(admitted))
  parked = tonumber(parked)
  local record = read(queue, tenant)
  local is_free_again = parked > 0 and record.frees ~= tonumber(frees)
  local has_more = parked ~= SHUT and record.offers ~= tonumber(offers)
  finish(record, tonumber(unused), unused * charge_of(record), now)
  if is_free_again then
    exit(record, parked) -- so that it does not come as one that had nothing to run, before newcomers
    offered(record)
  elseif not has_more then
    exit(record, parked)
    if tonumber(wait) >= 0 then
      redis.call('ZADD', key('wake', queue), now + wait, tenant)
      wakes_at(queue)
    end
  elseif place_of(record) then
    stay(record)
  else
    offered(record)
  end
  write(record)
  return is_free_again and room(queue) > 0
end

-- The turn came to nothing, or to less, and the tenant keeps its place. Whoever found no room because of it has left that to
-- the feeder, which may have nobody to ask: a worker that waits is to look.
function operations.undo(queue, tenant, unused, feeder, admitted)
  local had_room = times_of(queue).given[feeder]
  has_to_push(queue, feeder, tonumber(admitted))
  if had_room and admitted == '0' and somebody_waits(queue) then wake_somebody(queue) end
  local record = read(queue, tenant)
  finish(record, tonumber(unused), unused * charge_of(record), now)
  if place_of(record) then stay(record) end
  write(record)
end

-- The feeder was interrupted: whoever found no room because of its turn has left that to it.
function operations.give_up(queue, feeder)
  if not times_of(queue).given[feeder] then return end
  has_to_push(queue, feeder, 0)
  if somebody_waits(queue) then wake_somebody(queue) end
end

-- Those of these tenants that have no place there, and of which it is not known either that they wait for a slot.
function operations.unknown(queue)
  local tenants, found = rest(1), {}
  fetch(tenants)
  for _, tenant in ipairs(tenants) do
    local record = read(queue, tenant)
    if record.parked == 0 and not place_of(record) then found[#found + 1] = tenant end
  end
  return found
end

-- The first ones that have a turn while nobody listens.
function operations.heads(queue)
  local below, found = '(' .. string.format('%.17g', BEHIND), {}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key('order', queue), '-inf', below, 'LIMIT', 0, FIELDS)) do
    if is_tenant(member) then found[#found + 1] = member end
  end
  return found
end

-- These have none, as long as nobody listens: some have another queue of their own, some a worker in another one.
function operations.pass_over(queue, in_lane)
  local score = string.format('%.17g', in_lane == '1' and IN_LANE or BEHIND)
  for _, tenant in ipairs(rest(2)) do redis.call('ZADD', key('order', queue), 'XX', score, tenant) end
  note(queue, 'behind', 1)
end

-- What else a worker has done for a tenant, whose job is charged already.
function operations.cost(queue, tenant, seconds, mark)
  local record = records_of(tenant)[queue]
  seconds = tonumber(seconds)
  if not record or is_said_again(record, seconds, tonumber(mark)) then return end
  record.done = record.done + by_share(record, seconds)
  place_again(record)
  write(record)
end

-- Whether any worker is there for a queue.
function operations.listens(queue)
  local _, workers = window(queue)
  return workers > 0
end

-- How many jobs are admitted there for nobody, as who was idle has turned to another queue; and how many workers are idle.
function operations.excess(queue)
  local most, _, idle = window(queue)
  return {math.max(0, admitted_in(queue, most) - most), idle}
end

-- The tenant is no more.
function operations.forget(tenant)
  for queue in pairs(records_of(tenant)) do
    for _, name in ipairs({'order', 'wake'}) do redis.call('ZREM', key(name, queue), tenant) end
    redis.call('SREM', key('busy', queue), tenant)
  end
  redis.call('HDEL', KNOWN, tenant)
end

local function charge(record, jobs, seconds)
  if jobs < record.jobs then record.offset = record.offset * jobs / record.jobs end -- of those whose ends were lost
  record.jobs, record.begun = jobs, jobs == 0 and 0 or jobs * now - seconds
  record.ahead = jobs == 0 and 0 or math.max(jobs * charge_of(record), by_share(record, seconds))
  place_again(record)
  write(record)
end

-- Ours that have ended without a word are known as ours as long as RQ has their records: else they would count as stock ones.
-- A worker says for so many seconds that it is there: later than that is said by a clock that has been set back since.
local function forget_workers(queue, seconds)
  for _, what in ipairs({'idle', 'workers'}) do
    redis.call('ZREMRANGEBYSCORE', key(what, queue), now + seconds + OUTDATED, '+inf')
  end
  redis.call('ZREMRANGEBYSCORE', key('idle', queue), '-inf', now - OUTDATED)
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', key('workers', queue), '-inf', now - OUTDATED)) do
    if redis.call('HEXISTS', worker, 'tenant_slots_class') == 0 then redis.call('ZREM', key('workers', queue), worker) end
  end
end

-- The plain jobs that are admitted by now. One that RQ has put back into its list is none.
local function keep_brought(queue, rq_ids)
  redis.call('DEL', key('brought', queue))
  for at = 1, #rq_ids, FIELDS do
    redis.call('SADD', key('brought', queue), unpack(rq_ids, at, math.min(#rq_ids, at + FIELDS - 1)))
  end
  note(queue, 'brought', #rq_ids > 0 and 1 or 0)
end

-- Some of the queue's virtual time has come from time that no job has had: ends could not be told for a while, or the clock
-- of Redis was put forward. It goes back by that, as long as no running job has had so much by now.
local function take_back(queue, most)
  local t = times_of(queue)
  local had = math.max(t.sure, most)
  if t.virtual > had + NOTICED then note(queue, 'virtual', had) end
end

-- What is known of those under way when the sweep is about to ask the database: tenant, its jobs, and the sum of their
-- starts in turn.
function operations.under_way(queue)
  local seen = {}
  for _, tenant in ipairs(redis.call('SMEMBERS', key('busy', queue))) do
    local record = read(queue, tenant)
    for _, value in ipairs({tenant, record.jobs, string.format('%.17g', record.begun)}) do seen[#seen + 1] = value end
  end
  return seen
end

-- What the database has said is taken nearer to what is known here, by no more than has changed here since before it was
-- asked: it may have missed that, or not.
local function up_to_date(said, known, change)
  return math.max(math.min(said, said + change), math.min(math.max(said, said + change), known))
end

-- Charge so many jobs under way, and their seconds, as the database has said; so many, with this sum of their starts, were
-- known before it was asked. Where no more run than were known here, before or since, they have taken no more than is known
-- here: one of the clocks may have been put forward while they run, and nobody who comes meanwhile is to stand behind time that
-- has not been.
local function charge_as_said(record, said, seen)
  local seconds = record.jobs * now - record.begun
  if said.jobs <= math.max(seen.jobs, record.jobs) then
    said.seconds = math.min(said.seconds, math.max(0, seconds, seen.jobs * now - seen.begun))
  end
  local more_jobs, more_seconds = record.jobs - seen.jobs, seconds - (seen.jobs * now - seen.begun)
  local jobs = up_to_date(said.jobs, record.jobs, more_jobs)
  charge(record, jobs, up_to_date(said.seconds, math.max(0, seconds), more_seconds))
end

-- What is under way is charged for as long as it has run, at least the mean: tenant, its jobs, and their seconds in turn,
-- behind the ids of so many plain jobs that are admitted, so many values of what was known before, and so many of shares,
-- tenant and share in turn. It is believed to run for so many seconds from now.
function operations.charge(queue, seconds, plain, before, shares)
  local given, least, most = rest(5), math.huge, 0
  local said, seen = {}, {}
  note(queue, 'swept', now)
  note(queue, 'believed', now + seconds)
  local busy = key('busy', queue)
  for _, tenant in ipairs(redis.call('SMEMBERS', busy)) do said[tenant] = {jobs = 0, seconds = 0} end
  for at = plain + 1, plain + before, 3 do
    seen[given[at]] = {jobs = tonumber(given[at + 1]), begun = tonumber(given[at + 2])}
  end
  local running = plain + before + shares
  for at = plain + before + 1, running, 2 do learn_share(read(queue, given[at]), tonumber(given[at + 1])) end
  for at = running + 1, #given, 3 do
    said[given[at]] = {jobs = tonumber(given[at + 1]), seconds = tonumber(given[at + 2])}
  end
  redis.call('DEL', busy)
  for tenant, jobs in pairs(said) do
    local record = read(queue, tenant)
    charge_as_said(record, jobs, seen[tenant] or {jobs = 0, begun = 0})
    if record.jobs > 0 then
      redis.call('SADD', busy, tenant)
      least, most = math.min(least, measured(record)), math.max(most, measured(record))
    end
  end
  take_back(queue, most)
  -- Where nobody waits, what runs is nobody's debt.
  if redis.call('ZCARD', key('order', queue)) == 0 and least < math.huge then
    note(queue, 'virtual', math.max(times_of(queue).virtual, least))
  end
  note(queue, 'most', 0)
  forget_workers(queue, seconds)
  keep_brought(queue, {unpack(given, 1, plain)})
  for _, worker in ipairs(redis.call('ZRANGE', key('watch', queue), 0, -1)) do
    if not redis.call('ZSCORE', key('workers', queue), worker) then redis.call('ZREM', key('watch', queue), worker) end
  end
  room(queue)
  come_forward(queue, BEHIND)
  have_somebody_watch(queue)
end

-- Pushed jobs at the end of a list with plain RQ jobs go where two of these stand together, one between each two of them.
function operations.bring(queue, feeder)
  has_to_push(queue, feeder, 0)
  local list, rq_ids, at, nth = 'rq:queue:' .. queue, rest(2), 0, 1
  local pushed, before = {}, nil
  for _, rq_id in ipairs(rq_ids) do
    pushed[rq_id] = true
    if not is_ours(rq_id) then
      redis.call('SADD', key('brought', queue), rq_id)
      note(queue, 'brought', 1)
    end
  end
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

local answer = operations[ARGV[1]](unpack(ARGV, 2, 10))
keep_all()
return answer
