-- Two GCRA buckets, both or neither, with waiters. See docs/decisions/bucket-script.md.
--
-- KEYS  1 provider bucket (hash)  2 tenant bucket (string)  3 waiters (zset: tenant:asker -> end of its mark)
--       4 served (zset: tenant -> last grant)  5 askers (zset: asker -> last seen + 30 s)
--       6, 7 the waiters and served of marketing, which hold up nobody but marketing
-- Times are microseconds of the server's clock. The answer's numbers are strings: a Lua
-- number would lose its digits on the way out.
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]

local MAX_BLOCK = 900000000 -- 15 min
local MARK, MARK_GRACE = 2000000, 100000
local RECOVER = 100000000 -- 100 s from the end of a block back to the full rate
local CUT, FLOOR = 0.7, 0.1

local function text(n) return string.format('%.0f', n) end
local function number(v, default) return tonumber(v or '') or default end

local stored = redis.call('HMGET', KEYS[1], 'tat', 'blocked', 'factor', 'factor_at', 'cut', 'day', 'day_used', 'month', 'month_used')
local tat = number(stored[1], 0)
-- What another clock wrote is brought back to what could stand here, once: clamped
-- anew at each call it would never come.
local blocked = math.min(number(stored[2], 0), now + MAX_BLOCK)
local factor_at = math.min(number(stored[4], 0), now + MAX_BLOCK)
if blocked < number(stored[2], 0) then redis.call('HSET', KEYS[1], 'blocked', text(blocked)) end
if factor_at < number(stored[4], 0) then redis.call('HSET', KEYS[1], 'factor_at', text(factor_at)) end
local cut = math.min(number(stored[5], 0), now)
local factor = number(stored[3], 1)
if now > factor_at then
  factor = factor + (1 - factor) * math.min(1, (now - factor_at) / RECOVER)
end

-- used_of gives what is used of a quota's period; a later period starts at zero.
local function used_of(period, stored_period, stored_used)
  if period > number(stored_period, 0) then return 0 end
  return number(stored_used, 0)
end

if ARGV[1] == 'report' then
  local kind, granted, retry = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  if kind == 'rate' or kind == 'quota' then
    local fresh = granted > cut
    if granted == 0 then fresh = blocked <= now end
    blocked = math.max(blocked, now + math.min(retry, MAX_BLOCK))
    if kind == 'rate' and fresh then
      factor, cut = math.max(FLOOR, CUT * factor), now
      redis.call('HSET', KEYS[1], 'factor', tostring(factor), 'cut', text(now))
    end
    -- During a block nothing is learned about the rate: it recovers from the end on.
    if kind == 'rate' then redis.call('HSET', KEYS[1], 'factor', tostring(factor), 'factor_at', text(blocked)) end
    redis.call('HSET', KEYS[1], 'blocked', text(blocked))
  end
  local day, day_used, month, month_used = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
  if day_used >= 0 and day >= number(stored[6], 0) then redis.call('HSET', KEYS[1], 'day', text(day), 'day_used', text(day_used)) end
  if month_used >= 0 and month >= number(stored[8], 0) then redis.call('HSET', KEYS[1], 'month', text(month), 'month_used', text(month_used)) end
  redis.call('PEXPIRE', KEYS[1], 3456000000)
  return {text(now), text(blocked), tostring(factor)}
end

if ARGV[1] == 'levels' then
  local out = {text(now), text(math.max(0, blocked - now)), tostring(factor), text(math.max(0, tat - now)), text(number(stored[7], 0)), text(number(stored[9], 0)), text(number(stored[6], 0)), text(number(stored[8], 0))}
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. text(now), text(now + MARK + MARK_GRACE))) do out[#out + 1] = member end
  return out
end

local mode, cost, least = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local capacity, rate, tenant_capacity, tenant_rate = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local tenant, asker, messages = ARGV[9], ARGV[10], tonumber(ARGV[11])
local day, day_limit, month, month_limit, reserve = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), tonumber(ARGV[16])
-- depth is how many tokens below empty a bucket may stand; whole wants all of the cost or nothing.
local depth, whole = number(ARGV[17], 0), ARGV[18] == '1'
local member = tenant .. ':' .. asker
local waiters, served = KEYS[3], KEYS[4]
if mode == 'marketing' then waiters, served = KEYS[6], KEYS[7] end
-- The last grant came to nothing: its tenant is where it was before, ahead of all.
if mode == 'renew' then redis.call('ZREM', served, tenant) end
local askers = 0
if mode == 'transactional' or mode == 'seen' then
  redis.call('ZADD', KEYS[5], text(now + 30000000), asker)
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', text(now))
  redis.call('PEXPIRE', KEYS[5], 60000)
  askers = redis.call('ZCARD', KEYS[5])
end

local debt, tenant_debt = 0, 0 -- µs until a bucket is full again
local function answer(granted, reason, wait)
  return {text(granted), reason, text(math.ceil(math.max(0, wait))), text(now), tostring(factor), text(askers), text(debt), text(tenant_debt)}
end

if mode == 'seen' then
  return answer(0, 'seen', 0)
end

-- owed is how far a bucket's arrival time lies ahead; differences first, because
-- an absolute time has only a quarter of a microsecond left of its digits.
local function owed(arrival, cap, interval)
  return math.min(math.max(arrival - now, 0), (cap + depth) * interval)
end
local function available(debt, cap, interval) return math.floor(cap - debt / interval + 1e-9) end
-- wanted is what must be there. What a bucket can never hold is granted once it is half
-- full, and leaves it in debt: asked to be full it would wait for ever beside small asks.
local function wanted(cap)
  if whole and least > cap then return math.max(1, math.floor(cap / 2)) end
  return least
end
local function due_in(debt, cap, interval) return debt + wanted(cap) * interval - cap * interval end

local tenant_interval, take = 0, cost
if tenant_rate > 0 then
  tenant_interval = 1000000 / tenant_rate
  local arrival = number(redis.call('GET', KEYS[2]), 0)
  tenant_debt = owed(arrival, tenant_capacity, tenant_interval)
  if arrival - now > tenant_debt + 1 then
    redis.call('SET', KEYS[2], text(now + tenant_debt), 'PX', text(math.ceil(tenant_debt / 1000) + 10000))
  end
  local free = available(tenant_debt, tenant_capacity, tenant_interval)
  if free < wanted(tenant_capacity) then
    -- It does not wait for the provider, so it holds nobody up there.
    if mode ~= 'plain' then redis.call('ZREM', waiters, member) end
    return answer(0, 'tenant', due_in(tenant_debt, tenant_capacity, tenant_interval))
  end
  if not whole then take = math.min(take, free) end
end

local interval = 1000000 / (rate * factor)
debt = owed(tat, capacity, interval)
if tat - now > debt + 1 then
  redis.call('HSET', KEYS[1], 'tat', text(now + debt))
end

local function stand(wait)
  redis.call('ZADD', waiters, text(now + math.min(wait, MARK) + MARK_GRACE), member)
  redis.call('PEXPIRE', waiters, 10000)
  return math.min(wait, MARK)
end
local function refuse(reason, wait)
  if mode ~= 'plain' then wait = stand(wait) end
  return answer(0, reason, wait)
end

if blocked > now then
  if mode == 'marketing' then return answer(0, 'blocked', blocked - now) end
  return refuse('blocked', blocked - now)
end
-- Of a burst of two or more, marketing leaves one token for a code.
local spare = (mode == 'marketing' and capacity >= 2) and 1 or 0
local free = available(debt, capacity, interval) - spare
if free < wanted(capacity) then
  return refuse('provider', due_in(debt, capacity, interval) + spare * interval)
end
if not whole then take = math.min(take, free) end

if mode == 'marketing' and (
    (day_limit > 0 and used_of(day, stored[6], stored[7]) + messages > day_limit * (1 - reserve)) or
    (month_limit > 0 and used_of(month, stored[8], stored[9]) + messages > month_limit * (1 - reserve))) then
  redis.call('ZREM', waiters, member)
  return answer(0, 'quota', 5000000) -- soon: the limit may be raised while it waits
end

-- standing gives the marks that live.
local function standing(set)
  redis.call('ZREMRANGEBYSCORE', set, '-inf', text(now))
  redis.call('ZREMRANGEBYSCORE', set, text(now + MARK + MARK_GRACE + 1), '+inf') -- another clock's
  return redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
end

if mode == 'marketing' and #standing(KEYS[3]) > 0 then
  return refuse('waiter', math.min(interval, MARK_GRACE))
end
-- A token of marketing's that has lain for an interval goes to whoever asks: whose turn
-- it is may be gone, or too slow for this rate.
if mode == 'transactional' or mode == 'marketing' and now - tat < interval then
  redis.call('ZREMRANGEBYSCORE', served, '(' .. text(now), '+inf')
  local marks, ends, names = standing(waiters), {}, {}
  for i = 1, #marks, 2 do
    local who = string.match(marks[i], '^[^:]*')
    if who ~= tenant then
      if not ends[who] then names[#names + 1] = who end
      ends[who] = math.max(ends[who] or 0, tonumber(marks[i + 1]))
    end
  end
  if #names > 0 then
    local others = redis.call('ZMSCORE', served, tenant, unpack(names))
    local mine, first, first_end = math.min(number(others[1], 0), now), nil, 0
    for i, who in ipairs(names) do
      local last = math.min(number(others[i + 1], 0), now)
      if last < mine and (first == nil or last < first or (last == first and ends[who] < first_end)) then
        first, first_end = last, ends[who]
      end
    end
    if first ~= nil then
      return refuse('waiter', math.max(1000, math.min(interval, first_end - now)))
    end
  end
end

debt = debt + take * interval
redis.call('HSET', KEYS[1], 'tat', text(now + debt))
-- A bucket of the API holds nothing but its debt; a provider's remembers what it was
-- told, a month's quota for more than a month.
redis.call('PEXPIRE', KEYS[1], mode == 'plain' and text(math.ceil(debt / 1000) + 10000) or 3456000000)
if day_limit > 0 then
  redis.call('HSET', KEYS[1], 'day', text(math.max(day, number(stored[6], 0))), 'day_used', text(used_of(day, stored[6], stored[7]) + messages))
end
if month_limit > 0 then
  redis.call('HSET', KEYS[1], 'month', text(math.max(month, number(stored[8], 0))), 'month_used', text(used_of(month, stored[8], stored[9]) + messages))
end
if tenant_rate > 0 then
  tenant_debt = tenant_debt + take * tenant_interval
  redis.call('SET', KEYS[2], text(now + tenant_debt), 'PX', text(math.ceil(tenant_debt / 1000) + 10000))
end
if mode ~= 'plain' then
  redis.call('ZREM', waiters, member)
  redis.call('ZADD', served, text(now), tenant)
  redis.call('ZREMRANGEBYSCORE', served, '-inf', text(now - 3600000000))
  redis.call('PEXPIRE', served, 3600000)
end
return answer(take, 'granted', 0)
