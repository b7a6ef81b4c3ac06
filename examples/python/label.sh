#!/bin/sh
# Says of each sentence whether it is easy to read: a stage in plain sh. Its data comes and goes as JSON lines on fd 3.
# The host writes the keys of an object sorted and without spaces, so that patterns can cut the lines.

say() { printf '%s\n' "$1" >&3; }

# The sentence that $data says, with its label.
label() {
  ease=${data#*'"ease":'}
  ease=${ease%%[,.\}]*}
  if [ "$ease" -ge "$limit" ]; then label=easy; else label=hard; fi
  say "{\"data\":{\"label\":\"$label\",${data#\{},\"req\":\"$req\",\"type\":\"data\"}"
}

limit=60
say '{"type":"hello","protocol":1}'
while IFS= read -r line <&3; do
  req=${line##*'"req":"'}
  req=${req%%'"'*}
  case $line in
    *'"type":"init"}')
      case $line in *'"easy":'*) limit=${line#*'"easy":'}; limit=${limit%%[,\}]*} ;; esac
      say '{"type":"ready"}'
      ;;
    '{"data":'*'"type":"data"}')
      data=${line#'{"data":'}
      data=${data%',"req":"'*}
      label
      ;;
    *'"type":"end"}') say "{\"req\":\"$req\",\"type\":\"done\"}" ;;
    *'"type":"stop"}') exit 0 ;;
  esac
done
