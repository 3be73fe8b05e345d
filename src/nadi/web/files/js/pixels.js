// The size of a picture from its file header, without decoding it.

const u16 = (data, at) => (at + 2 <= data.byteLength ? data.getUint16(at) : 0);

// [width, height]; null if unknown.
export function sizeOf(bytes, media) {
  const data = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (media === "image/jpeg") return ofJpeg(data);
  if (data.byteLength < 30) return null;
  if (media === "image/png") return [data.getUint32(16), data.getUint32(20)];
  if (media === "image/gif") return [data.getUint16(6, true), data.getUint16(8, true)];
  return media === "image/webp" ? ofWebp(data) : null;
}

function ofJpeg(data) {
  let at = 2;
  while (at + 9 <= data.byteLength) {
    const kind = data.getUint8(at + 1);
    if (data.getUint8(at) !== 0xff) return null;
    if (kind === 0xff) at += 1; // padding
    else if (kind >= 0xc0 && kind <= 0xcf && kind !== 0xc4 && kind !== 0xc8 && kind !== 0xcc) return [u16(data, at + 7), u16(data, at + 5)];
    else at += 2 + Math.max(u16(data, at + 2), 2);
  }
  return null;
}

function ofWebp(data) {
  const kind = data.getUint8(15); // the last letter of "VP8 ", "VP8L", "VP8X"
  const three = (at) => data.getUint16(at, true) + data.getUint8(at + 2) * 65536 + 1;
  if (kind === 0x58) return [three(24), three(27)];
  if (kind === 0x4c) {
    const bits = data.getUint32(21, true);
    return [(bits & 0x3fff) + 1, ((bits >>> 14) & 0x3fff) + 1];
  }
  return [data.getUint16(26, true) & 0x3fff, data.getUint16(28, true) & 0x3fff];
}
