package nadi.compatibility;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Byte streams: the bytes of a one-segment stream, without events. */
class ByteStreamsTest {
    private static Scope scope;
    private static ByteStreamClientFactory bytes;

    @BeforeAll
    static void open() {
        scope = new Scope(ByteStreamsTest.class);
        bytes = ByteStreamClientFactory.withScope(scope.name, scope.client());
    }

    @AfterAll
    static void close() throws Exception {
        bytes.close();
        scope.close();
    }

    private static byte[] random(int seed, int size) {
        byte[] data = new byte[size];
        new Random(seed).nextBytes(data);
        return data;
    }

    /** Not `readNBytes(size)`: that ends with a read of no bytes, for which this client waits at the tail. */
    private static byte[] read(ByteStreamReader reader, int size) throws IOException {
        byte[] data = new byte[size];
        assertEquals(size, reader.readNBytes(data, 0, size));
        return data;
    }

    @Test
    void whatIsWrittenIsReadBack() throws IOException {
        scope.create("whole", 1);
        byte[] data = random(1, 5_000_000);
        try (ByteStreamWriter writer = bytes.createByteStreamWriter("whole");
                ByteStreamReader reader = bytes.createByteStreamReader("whole")) {
            writer.write(data, 0, 3_000_000);
            writer.write(data, 3_000_000, 2_000_000);
            writer.flush();
            assertEquals(0, writer.fetchHeadOffset());
            assertEquals(data.length, writer.fetchTailOffset());
            assertArrayEquals(data, read(reader, data.length));
            assertEquals(data.length, reader.getOffset());
        }
    }

    @Test
    void aReaderSeeksAndSkips() throws IOException {
        scope.create("sought", 1);
        byte[] data = random(2, 100_000);
        try (ByteStreamWriter writer = bytes.createByteStreamWriter("sought");
                ByteStreamReader reader = bytes.createByteStreamReader("sought")) {
            writer.write(data);
            writer.flush();
            reader.seekToOffset(70_000);
            assertArrayEquals(Arrays.copyOfRange(data, 70_000, 70_100), read(reader, 100));
            reader.seekToOffset(10);
            assertArrayEquals(Arrays.copyOfRange(data, 10, 20), read(reader, 10));
            assertEquals(1_000, reader.skip(1_000));
            assertEquals(Byte.toUnsignedInt(data[1_020]), reader.read());
            assertEquals(1_021, reader.getOffset());
        }
    }

    @Test
    void truncatedBytesAreGoneAndTheOthersKeepTheirOffsets() throws IOException {
        scope.create("cut", 1);
        byte[] data = random(3, 50_000);
        try (ByteStreamWriter writer = bytes.createByteStreamWriter("cut")) {
            writer.write(data);
            writer.flush();
            writer.truncateDataBefore(20_000);
            assertEquals(20_000, writer.fetchHeadOffset());
            assertEquals(50_000, writer.fetchTailOffset());
            try (ByteStreamReader reader = bytes.createByteStreamReader("cut")) {
                assertEquals(20_000, reader.fetchHeadOffset());
                reader.seekToOffset(20_000);
                assertArrayEquals(Arrays.copyOfRange(data, 20_000, 50_000), read(reader, 30_000));
                reader.seekToOffset(19_999);
                assertThrows(IOException.class, reader::read);
            }
        }
    }

    @Test
    void aReaderAtTheTailLearnsOfNewBytes() throws Exception {
        scope.create("tail", 1);
        try (ByteStreamWriter writer = bytes.createByteStreamWriter("tail");
                ByteStreamReader reader = bytes.createByteStreamReader("tail")) {
            var available = reader.onDataAvailable();
            writer.write(random(4, 10));
            writer.flush();
            assertTrue(available.get(60, TimeUnit.SECONDS) > 0);
            assertArrayEquals(random(4, 10), read(reader, 10));
        }
    }

    @Test
    void twoWritersTakeTurns() throws IOException {
        scope.create("turns", 1);
        try (ByteStreamWriter one = bytes.createByteStreamWriter("turns");
                ByteStreamWriter two = bytes.createByteStreamWriter("turns");
                ByteStreamReader reader = bytes.createByteStreamReader("turns")) {
            for (int i = 0; i < 10; i++) {
                ByteStreamWriter writer = i % 2 == 0 ? one : two;
                writer.write(new byte[] {(byte) i, (byte) (i + 100)});
                writer.flush();
            }
            byte[] found = read(reader, 20);
            for (int i = 0; i < 10; i++) {
                assertEquals(i, found[2 * i]);
                assertEquals(i + 100, found[2 * i + 1]);
            }
        }
    }

    @Test
    void aSealedStreamEnds() throws IOException {
        scope.create("ended", 1);
        byte[] data = random(5, 1_000);
        try (ByteStreamReader reader = bytes.createByteStreamReader("ended")) {
            ByteStreamWriter writer = bytes.createByteStreamWriter("ended");
            writer.write(data);
            writer.closeAndSeal();
            assertArrayEquals(data, reader.readAllBytes());
            assertEquals(-1, reader.read());
        }
    }
}
