// How many texts are in sight, and those whose contrast with what is behind them is under 4.5, or that are
// made fainter by opacity, which the sums here do not follow.
() => {
  const parse = (colour) => {
    const values = colour.match(/[\d.]+/g).map(Number);
    return [...values.slice(0, 3), values[3] ?? 1];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((value, i) => a * value + (1 - a) * under[i]);
  const straight = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => straight(value / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const around = (element) => (element ? [...around(element.parentElement), element] : []);
  const faint = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const shown = walker.currentNode.data.trim() && element.checkVisibility();
    if (!shown || element.closest("option, :disabled")) continue;
    texts++;
    const styles = around(element).map((one) => getComputedStyle(one));
    const ground = styles.reduce((under, style) => over(parse(style.backgroundColor), under), [255, 255, 255]);
    const [one, two] = [light(over(parse(styles.at(-1).color), ground)), light(ground)];
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    const opaque = styles.every((style) => style.opacity === "1");
    if (contrast < 4.5 || !opaque) faint.add(`${element.tagName} ${element.className} ${contrast.toFixed(2)}`);
  }
  return [texts, ...faint];
}
