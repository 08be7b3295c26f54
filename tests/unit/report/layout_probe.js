// Put into a copy of the page, which lies in a frame: looks at every text as the browser lays it out, and writes what is
// wrong with it into <pre id="layout-probe"> of the page around it, as JSON.
addEventListener("load", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  document.getElementById("more")?.click();
  const problems = [], boxes = [];
  const scrolls = (node) => getComputedStyle(node).overflowX === "auto";
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width)
    problems.push(`the page is ${document.documentElement.scrollWidth} pixels wide, the window ${width}`);
  const inside = (box, of, what) => {
    if (box.left < of.left - 1 || box.right > of.right + 1 || box.top < of.top - 1.5 || box.bottom > of.bottom + 1.5)
      problems.push(`cut off by ${what.tagName} ${what.className}: ${box.text}`);
  };
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(parent.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(texts.currentNode);
    const drawing = parent.closest("svg");
    const shapes = drawing ? [parent.getBoundingClientRect()] : [...range.getClientRects()];
    for (const { left, right, top, bottom } of shapes) {
      if (right - left < 1 || bottom - top < 1) continue;
      const box = { left, right, top, bottom, text: text.slice(0, 60), drawing };
      boxes.push(box);
      if (drawing) inside(box, drawing.getBoundingClientRect(), drawing);
      // What a box scrolls is not cut off, everything else has to fit into all that is around it.
      for (let around = drawing?.parentElement ?? parent; around !== document.body; around = around.parentElement) {
        if (scrolls(around)) break;
        if (getComputedStyle(around).display !== "inline") {
          const of = around.getBoundingClientRect();
          inside({ ...box, top: of.top, bottom: of.bottom }, of, around);
        }
      }
    }
    const scale = drawing ? drawing.getScreenCTM().a : 1;
    const pixels = parseFloat(getComputedStyle(parent).fontSize) * scale;
    if (pixels < 9.5) problems.push(`${pixels.toFixed(1)} pixels are too small: ${text.slice(0, 60)}`);
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom - 2; ++j) {
      const b = boxes[j];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
          Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
        problems.push(`overlap: "${a.text}" and "${b.text}"`);
    }
  });
  const drawn = boxes.filter((box) => box.drawing).length;
  const found = parent.document.createElement("pre");
  found.id = "layout-probe";
  found.textContent = JSON.stringify({ width: innerWidth, texts: boxes.length, drawn, problems });
  parent.document.body.append(found);
});
