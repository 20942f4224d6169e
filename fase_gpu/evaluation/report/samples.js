// The samples of one task by class, with what differs marked.

const LINE_END = /\r\n|\n|\r/;

// Lines of both texts in one list of [sign, line]: "-" in the first only, "+" in the second only, " " in both.
function lineDiff(before, after) {
  const a = before.split(LINE_END), b = after.split(LINE_END);
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const x = a.slice(start, a.length - end), y = b.slice(start, b.length - end), wide = y.length + 1;
  // common[i, j]: the longest common subsequence of x[i ...] and y[j ...]
  const common = new Uint16Array((x.length + 1) * wide);
  for (let i = x.length - 1; i >= 0; i--) {
    for (let j = y.length - 1; j >= 0; j--) {
      common[i * wide + j] = x[i] === y[j] ? common[(i + 1) * wide + j + 1] + 1 : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
    }
  }
  const found = a.slice(0, start).map((line) => [" ", line]);
  let i = 0, j = 0;
  while (i < x.length || j < y.length) {
    if (i < x.length && j < y.length && x[i] === y[j]) { found.push([" ", x[i]]); i++; j++; }
    else if (j === y.length || (i < x.length && common[(i + 1) * wide + j] >= common[i * wide + j + 1])) found.push(["-", x[i++]]);
    else found.push(["+", y[j++]]);
  }
  return found.concat(a.slice(a.length - end).map((line) => [" ", line]));
}

function code(lines, title) {
  const names = { "-": "del", "+": "ins", " ": "span" };
  return element("pre", { tabindex: 0, "aria-label": title },
    ...lines.map(([sign, line]) => element(names[sign], {}, `${sign} ${visible(line)}`)));
}

function plain(text) {
  return text.split(LINE_END).map((line) => [" ", line]);
}

function cutNote(missing) {
  return missing ? [element("p", { class: "note" }, `Cut here: ${counted(missing, "more character")}.`)] : [];
}

function sampleCode(detail, i, against) {
  const text = detail.texts[detail.text[i]];
  const lines = against === null ? plain(text) : lineDiff(detail.texts[detail.text[against]], text);
  return [code(lines, sampleName(detail, i)), ...cutNote(detail.cut[detail.text[i]])];
}

function classSection(detail, place, compared) {
  const members = detail.classes[place], representative = members[0];
  const passed = detail.passed === null ? "" : `, ${members.filter((i) => detail.passed[i]).length} passed`;
  const section = element("section", { class: "class" },
    element("h4", {}, `Class ${className(place)}: ${counted(members.length, "sample")}${passed}`));
  const colour = classColour(detail, place);
  if (colour !== "var(--paper)") section.style.borderLeftColor = colour;
  if (detail.text[representative] < 0) return section;
  const against = compared === null || compared === place ? null : detail.classes[compared][0];
  const about = against === null ? "" : `; lines with − are in sample ${against} of class ${className(compared)} only, those with + in this one only`;
  const name = ["Sample " + representative, outcome(detail, representative), members.length > 1 ? "the nearest to the others of its class" : ""];
  section.append(element("p", { class: "note" }, `${name.filter(Boolean).join(", ")}${about}.`));
  section.append(...sampleCode(detail, representative, against));
  const first = new Map();
  for (const i of members) {
    const same = first.get(detail.text[i]);
    if (same === undefined) first.set(detail.text[i], i);
    if (i === representative || detail.text[i] < 0) continue;
    const name = ["Sample " + i, outcome(detail, i), same === undefined ? "" : `the same text as sample ${same}`].filter(Boolean).join(", ");
    if (same !== undefined) { section.append(element("p", { class: "note" }, name + ".")); continue; }
    const more = element("details", {}, element("summary", {}, `${name}, against sample ${representative}`));
    more.addEventListener("toggle", () => {
      if (more.open && more.children.length === 1) more.append(...sampleCode(detail, i, representative));
    });
    section.append(more);
  }
  return section;
}

function samplesByClass(detail) {
  const list = element("div");
  const show = (value) => {
    const compared = value === "" ? null : Number(value);
    list.replaceChildren(...detail.classes.map((_, place) => classSection(detail, place, compared)));
  };
  const parts = [element("h3", {}, "Samples by class")];
  if (detail.classes.length > 1) {
    const select = element("select", { id: "against" }, element("option", { value: "" }, "nothing"),
      ...detail.classes.map((members, place) => detail.text[members[0]] < 0 ? "" : element("option", { value: place }, `class ${className(place)}`)));
    select.value = "0";
    select.addEventListener("change", () => show(select.value));
    parts.push(element("p", { class: "bar" }, element("label", {}, "Compare with ", select)));
  }
  show(detail.classes.length > 1 ? "0" : "");
  if (detail.text.includes(-1)) {
    parts.push(element("p", { class: "note" }, `Of a task of more than ${data.most_drawn} samples, one sample for each of the largest classes is in this file.`));
  }
  return element("div", { id: "samples" }, ...parts, list);
}
