-- Splits a text into sentences and sends each on as soon as it is found.

local thinker = {}

-- Words that end with a full stop and end no sentence, in lower case.
local ABBREVIATIONS = {}
for word in ([[
  mr mrs ms dr prof st jr sr vs vol e.g i.e cf
  z.b d.h u.a ca nr hr fr
  m mm mme mlle p.ex
  sra srta ud uds pág núm
]]):gmatch "%S+" do
  ABBREVIATIONS[word] = true
end

local FULL_WIDTH = { ["。"] = true, ["！"] = true, ["？"] = true, ["｡"] = true }
local CLOSING = { ["”"] = true, ["’"] = true, ["»"] = true, ["」"] = true, ["』"] = true, ["）"] = true,
  ['"'] = true, ["'"] = true, [")"] = true }
local UTF8 = "[%z\1-\127\194-\244][\128-\191]*"

local function characters(text)
  local list = {}
  for character in text:gmatch(UTF8) do list[#list + 1] = character end
  return list
end

local function word_before(list, at)
  local first = at
  while first > 1 and list[first - 1]:find "[^%s(\"']" do first = first - 1 end
  return table.concat(list, "", first, at - 1)
end

-- Whether the full stop at this place only shortens a word ("Dr. Meyer", "J. S. Bach") or makes an ordinal
-- ("3. Oktober").
local function shortens(list, at, lang)
  local word = word_before(list, at)
  if ABBREVIATIONS[word:lower()] or word:find "^%a$" then return true end
  return lang == "de" and word:find "^%d%d?$" ~= nil
end

local function skip(list, at, wanted)
  while list[at] and wanted(list[at]) do at = at + 1 end
  return at
end

local function is_space(c) return c:find "^%s$" ~= nil or c == "　" or c == "\194\160" end

-- The place behind a sentence that ends with the mark at this place, or nil when none does.
local function sentence_end(list, at, lang)
  local mark = list[at]
  if FULL_WIDTH[mark] then
    return skip(list, at + 1, function(c) return FULL_WIDTH[c] or CLOSING[c] end)
  end
  if mark == "\n" and list[at + 1] == "\n" then return at end
  if not mark:find "^[.!?]$" and mark ~= "…" then return nil end
  local behind = skip(list, at + 1, function(c) return c:find "^[.!?]$" ~= nil or c == "…" or CLOSING[c] end)
  if list[behind] and not is_space(list[behind]) then return nil end
  local next_word = skip(list, behind, is_space)
  local follows = list[next_word]
  if follows == "»" then return next_word + 1 end -- French leaves a space before it
  if mark == "." and follows and (follows:find "^%l" or shortens(list, at, lang)) then return nil end
  return behind
end

--- Calls a function with each sentence of a text.
---@param text string
---@param lang string
---@param found fun(sentence: string)
function thinker.split(text, lang, found)
  local list = characters(text)
  local first, at = 1, 1
  while at <= #list do
    local behind = sentence_end(list, at, lang)
    if behind then
      local sentence = table.concat(list, "", first, behind - 1):match "^%s*(.-)%s*$"
      if sentence ~= "" then found(sentence) end
      first = skip(list, behind, is_space)
      at = first
    else
      at = at + 1
    end
  end
  local rest = table.concat(list, "", first):match "^%s*(.-)%s*$"
  if rest ~= "" then found(rest) end
end

function thinker.run(_, _, input, emit)
  for request in input do
    local text = type(request) == "table" and request.text or request
    local lang = type(request) == "table" and request.lang or "en"
    if type(text) ~= "string" then error("the request's data must be a text, or a table with text and lang", 0) end
    thinker.split(text, lang, function(sentence) emit { text = sentence, lang = lang } end)
  end
end

return thinker
