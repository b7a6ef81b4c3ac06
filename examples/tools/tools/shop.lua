-- Orders in SQLite. Each worker thread has a connection of its own; queries block their worker and nobody else.
local json = require "omni.json"
local luasql = require "luasql.sqlite3"

local folder = debug.getinfo(1, "S").source:match "^@(.*)/tools/[^/]*$" or "."
local FILE = folder .. "/var/shop.db"

local CUSTOMERS = { "ada", "bob", "cleo", "dan", "eve", "fay" }
local CURRENCIES = { "EUR", "USD", "JPY" }
local ORDERS = 60000

local function fill(db)
  assert(db:execute [[create table orders (id integer primary key, customer text, currency text, cents integer,
    day integer)]])
  assert(db:execute "create table credit (customer text primary key, cents integer)")
  assert(db:execute "begin")
  for i = 1, ORDERS do
    assert(db:execute(("insert into orders values (%d, '%s', '%s', %d, %d)"):format(i, CUSTOMERS[i * 7 % 6 + 1],
      CURRENCIES[math.floor(i / 6) % 3 + 1], i * 7919 % 90000 + 100, i % 365)))
  end
  assert(db:execute "create index of_customer on orders (customer, currency)")
  assert(db:execute "commit")
end

-- The database is made when the module is first loaded, under another name until it is whole.
local function connect()
  local env = luasql.sqlite3()
  local there = io.open(FILE, "re")
  if there then
    there:close()
  else
    local new = ("%s.%s"):format(FILE, tostring(env):match "%x+$")
    local db = assert(env:connect(new))
    fill(db)
    db:close()
    assert(os.rename(new, FILE))
  end
  return assert(env:connect(FILE))
end

local db = connect()

local function quoted(text) return "'" .. db:escape(text) .. "'" end

local function row_of(query)
  local cursor = assert(db:execute(query))
  local row = cursor:fetch({}, "a")
  cursor:close()
  return row
end

local customer = { type = "string" }

return {
  ["shop.customers"] = {
    description = "names of all customers",
    allow_early_read = true,
    call = function() return json.array { unpack(CUSTOMERS) } end,
  },

  ["shop.turnover"] = {
    description = "orders of a customer in a currency: how many, and their sum in cents",
    params = { customer, { type = "string", enum = CURRENCIES } },
    allow_early_read = true,
    call = function(_, name, currency)
      local row = row_of(("select count(*) as n, sum(cents) as cents from orders where customer = %s and currency = %s")
        :format(quoted(name), quoted(currency)))
      return { orders = tonumber(row.n), cents = tonumber(row.cents) or 0 }
    end,
  },

  ["shop.busiest_day"] = {
    description = "the day of the year with a customer's largest turnover",
    params = { customer },
    allow_early_read = true,
    call = function(_, name)
      local row = row_of(("select day, sum(cents) as cents from orders where customer = %s group by day " ..
        "order by cents desc, day limit 1"):format(quoted(name)))
      return row and tonumber(row.day), row and tonumber(row.cents)
    end,
  },

  ["shop.credit"] = {
    description = "a customer's credit in cents",
    params = { customer },
    allow_early_read = true,
    call = function(_, name)
      local row = row_of("select cents from credit where customer = " .. quoted(name))
      return row and tonumber(row.cents) or 0
    end,
  },

  ["shop.set_credit"] = {
    description = "sets a customer's credit in cents; a write",
    params = { customer, { type = "integer", minimum = 0 } },
    call = function(_, name, cents)
      assert(db:execute(("insert or replace into credit values (%s, %d)"):format(quoted(name), cents)))
      return cents
    end,
  },
}
