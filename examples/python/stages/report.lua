--- One line per sentence, and what is easiest at the end.

local report = {}

function report.run(_, _, input, emit)
  local best
  for judged in input do
    emit(("%s %6.1f  %s"):format(judged.label, judged.ease, judged.text))
    if not best or judged.ease > best.ease then best = judged end
  end
  if best then emit("easiest: " .. best.text) end
end

return report
