-- What there is to know about two customers before a meeting. Everything is a read, and hardly one needs another.

local function euros(customer)
  local eur = shop.turnover(customer, "EUR")
  local usd = shop.turnover(customer, "USD")
  local jpy = shop.turnover(customer, "JPY")
  local usd_rate, jpy_rate = rates.to_eur "USD", rates.to_eur "JPY"
  return math.floor(eur.cents + usd.cents * usd_rate + jpy.cents * jpy_rate) / 100
end

local first, second = inputs.first or "ada", inputs.second or "bob"

local about = {
  [first] = notes.read(first),
  [second] = notes.read(second),
  credit = shop.credit(first),
}
local day, cents = shop.busiest_day(first)

return {
  turnover = { [first] = euros(first), [second] = euros(second) },
  notes = about,
  best_day = { day = day, euros = cents / 100 },
}
