// Put into a copy of the page, which lies in a frame: looks at every text as the browser lays it out, and writes what is
// wrong with it into <pre class="layout-probe" id="found-NAME"> of the page around the frame NAME, as JSON.
addEventListener("load", () => {
  const target = document.getElementById(location.hash.slice(1)), at = target?.getBoundingClientRect();
  const reached = { id: target?.id, open: target?.open, inView: at && at.top >= 0 && at.top < innerHeight,
                    filter: document.getElementById("filter")?.value };
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
  // Colors are [red, green, blue, opacity]. over(): what is seen of one on another; contrast(): from 1 to 21.
  const color = (text) => {
    const parts = (text.match(/[\d.]+/g) ?? [0, 0, 0, 0]).map(Number).concat(1).slice(0, 4);
    return text.startsWith("color(srgb") ? parts.map((part, i) => (i < 3 ? 255 * part : part)) : parts;
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const part = rgb[i] / 255;
    return sum + weight * (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  }, 0.05);
  const contrast = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
  const ground = (element) => {
    const own = color(getComputedStyle(element).backgroundColor);
    if (own[3] === 1) return own;
    return over(own, element.parentElement ? ground(element.parentElement) : [255, 255, 255, 1]);
  };
  // The color below a text of a picture; null on an image, whose pixels are not known here.
  const belowText = (text, drawing) => {
    const at = text.getBoundingClientRect(), x = (at.left + at.right) / 2, y = (at.top + at.bottom) / 2;
    let found = ground(drawing);
    for (const shape of drawing.querySelectorAll("path, image")) {
      if (text.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_FOLLOWING) break;
      const box = shape.getBoundingClientRect(), style = getComputedStyle(shape);
      if (x < box.left || x > box.right || y < box.top || y > box.bottom) continue;
      if (shape.tagName === "image") found = null;
      else if (style.fill !== "none" && found) {
        const fill = color(style.fill);
        found = over([...fill.slice(0, 3), fill[3] * style.fillOpacity * style.opacity], found);
      }
    }
    return found;
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
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
    const style = getComputedStyle(parent), below = drawing ? belowText(parent, drawing) : ground(parent);
    const ratio = below ? contrast(over(color(drawing ? style.fill : style.color), below), below) : 21;
    if (ratio < 3) problems.push(`contrast ${ratio.toFixed(1)} is too low: ${text.slice(0, 60)}`);
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
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const found = parent.document.createElement("pre");
  found.className = "layout-probe";
  found.id = `found-${window.name}`;
  found.textContent = JSON.stringify({ width: innerWidth, dark, brightness: light(ground(document.body)),
                                       texts: boxes.length, drawn, problems, reached });
  parent.document.body.append(found);
});
