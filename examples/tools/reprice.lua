-- Gives customers credit by their turnover and notes it down: reads between writes, and a mistake that is dealt with.

local given = {}
for i, customer in ipairs { "ada", "bob", "cleo" } do
  local eur = shop.turnover(customer, "EUR")
  local usd = shop.turnover(customer, "USD")
  local rate = rates.to_eur "USD"
  local credit = math.floor((eur.cents + usd.cents * rate) / 1000)

  shop.set_credit(customer, credit)

  local now = shop.credit(customer) -- after the write, so it cannot start before it
  local note = notes.read(customer)
  notes.write(customer, ("%s\nCredit %d cents.\n"):format(note:match "^[^\n]*", now))
  given[i] = { customer = customer, credit = now, note = notes.read(customer) }
end

local ok, why = pcall(rates.to_eur, "XXX")
print("unknown currency:", ok, why)

return given
