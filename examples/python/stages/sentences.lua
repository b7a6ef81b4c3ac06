--- Cuts a text into sentences.

local sentences = {}

function sentences.run(_, _, input, emit)
  for text in input do
    for sentence in text:gmatch "[^%.!%?]+[%.!%?]*" do
      sentence = sentence:gsub("%s+", " "):gsub("^ ", "")
      if sentence ~= "" then emit(sentence) end
    end
  end
end

return sentences
