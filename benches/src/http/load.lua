-- The requests of wrk: a debit each. Arguments: what for, a prefix that no other run has, and the status that is expected.
--
-- first     a new key for each request
-- replay    the first keys of the run that has had the prefix
-- keyless   no key
-- other     the keys of a replay for another amount
-- held      one key, which another request holds

-- So few that any run has had them all.
local KEYS = 50
-- Customers differ between these threads too, so that requests at one time are of different ones.
local THREADS = 2
local threads = {}

function setup(thread)
    thread:set("id", #threads)
    table.insert(threads, thread)
end

function init(arguments)
    mode, prefix, expected = arguments[1], arguments[2], tonumber(arguments[3])
    number, as_expected = 0, 0
    headers = { ["Authorization"] = "Bearer shop", ["Content-Type"] = "application/json" }
    -- Answers are read one by one only where they are all alike: that costs wrk time.
    if mode ~= "first" and mode ~= "replay" then
        response = function(status)
            if status == expected then as_expected = as_expected + 1 end
        end
    end
end

function request()
    number = number + 1
    local n, cents = number, 1177
    -- The first one that wrk makes it keeps for itself.
    if mode == "replay" or mode == "other" then n = 2 + number % KEYS end
    if mode == "other" then cents = 1178 end
    if mode == "held" then
        headers["Idempotency-Key"] = prefix
        n = 0
    elseif mode ~= "keyless" then
        headers["Idempotency-Key"] = prefix .. "-" .. id .. "-" .. n
    end
    local customer = mode == "held" and "held" or string.format("%05d", (n * THREADS + id) * 7919 % 10000)
    local body = '{"customer":"' .. customer .. '","cents":' .. cents .. '}'
    return wrk.format("POST", "/transactions", headers, body)
end

function done(summary, latency)
    local all, errors = 0, summary.errors
    for _, thread in ipairs(threads) do all = all + thread:get("as_expected") end
    io.write(string.format(
        'figures {"requests":%d,"microseconds":%d,"refused":%d,"broken":%d,"as_expected":%d}\n',
        summary.requests, summary.duration, errors.status, errors.connect + errors.read + errors.write + errors.timeout, all))
end
