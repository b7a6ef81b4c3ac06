-- Follows one thread: each read needs what the one before it gave. There is nothing to overlap, so the pass leaves the
-- program as it is.

local name = shop.customers()[1]
local day = shop.busiest_day(name)
local turnover = shop.turnover(name, day % 2 == 0 and "USD" or "JPY")
local rate = rates.to_eur(turnover.orders > 0 and "USD" or "EUR")
local note = notes.read(rate < 1 and name or "nobody")
return ("%s: %d orders, mostly on day %d. %s"):format(name, turnover.orders, day, note:match "^[^\n]*")
